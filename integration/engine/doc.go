// Package engine holds the tests of the engine lane that need the whole agent:
// the hostagent binary over its socket, a private containerd, real containers.
// The tests of its parts lie beside the parts.
package engine
