// Package packaging is the packages, their files, and the tests that keep them
// true: nfpm descriptions, systemd units, scripts, example configuration, man
// pages. It has no code of its own.
package packaging
