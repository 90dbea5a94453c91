//go:build race

package core

// raceEnabled says whether the race detector slows this run down.
const raceEnabled = true
