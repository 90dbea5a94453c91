// Package engine holds the tests of the engine lane that need the whole agent:
// the hostagent binary over its socket, a private containerd, real containers.
// The tests of its parts lie beside the parts.
//
// TestManyAllocations has a long form: go test -tags engine -timeout 2h -run
// TestManyAllocations ./integration/engine -args -many 2000, and so has
// TestManyKilledAtStart: -args -killed 200.
package engine
