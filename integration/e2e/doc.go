// Package e2e runs whole systems of the real binaries: job service, controller,
// host agent, a private containerd and real containers. It owns the stories; the
// machinery is package controllertest's.
package e2e
