package engine

import (
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
)

// A finding knows its container where the text that names it does.
func TestLeftoverNonce(t *testing.T) {
	nonce := strings.Repeat("0123456789abcdef", 2)
	for text, want := range map[string]protocol.ID{
		"q-" + nonce: protocol.ID(nonce),
		nonce:        protocol.ID(nonce),
		"/run/task/quittance/q-" + nonce + "/rootfs":             protocol.ID(nonce),
		"capture=1&dir=%2Fx&journal=false&nonce=" + nonce + "&u": protocol.ID(nonce),
		"q-" + nonce + "0": "",
		"strange":          "",
	} {
		if got := leftover("kind", "name", text); got.Nonce != want || got.Kind != "kind" || got.Name != "name" {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

// The daemon's root lies above its snapshotter's usual place, and is unknown
// where the snapshotter was put elsewhere.
func TestDaemonRoot(t *testing.T) {
	for layers, want := range map[string]string{
		"/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/": "/var/lib/containerd",
		"/srv/layers/": "",
		"":             "",
	} {
		if got := daemonRoot(layers); got != want {
			t.Errorf("%q: %q, want %q", layers, got, want)
		}
	}
}
