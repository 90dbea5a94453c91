//go:build engine

package engine_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
)

// A real scrape of a real agent: what was done, refused and seen is counted by
// operation and disposition, over a restart the gauges come from the ledger, and
// nobody but root and metrics_group reads it.
func TestFigures(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("plain", agenttest.Profile{Args: []string{"serve"}})
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := dir + "/figures.sock"
	lab.Start("QUITTANCE_METRICS_SOCKET=" + socket)
	c := newCaller(t, lab)
	c.witness()
	c.allocate(1, "plain")
	c.await(1, protocol.StateStarted)
	if _, err := c.gen.Allocate(t.Context(), 9, c.request("plain")); err == nil {
		t.Fatal("a gap was accepted")
	}
	text := figures(t, socket)
	for _, want := range []string{
		`quittance_agent_requests_total{code="",disposition="done",operation="PUT allocations/{n}"} 1`,
		`quittance_agent_requests_total{code="sequence_gap",disposition="refused",operation="PUT allocations/{n}"} 1`,
		`quittance_agent_engine_calls_total{disposition="done",operation="start"} 1`,
		`quittance_agent_receipts_total{kind="started"} 1`,
		`quittance_agent_oom_verdicts_total{scope="host",verdict="killed"} 0`,
		`quittance_agent_slots_used 1`, `quittance_agent_accepted_number 1`, `quittance_agent_released_number 0`,
		`quittance_agent_engine_available 1`, `quittance_agent_draining 0`, `quittance_agent_ledger_full 0`, `quittance_agent_profiles_available 1`,
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	for _, not := range []string{"purpose", "nonce", string(lab.Generation), lab.StateDir()} {
		if strings.Contains(text, not) {
			t.Errorf("the figures say %q", not)
		}
	}

	get := exec.CommandContext(t.Context(), lab.Worker(), "get", socket, "/metrics")
	get.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := get.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("permission denied")) {
		t.Errorf("another user reads the figures: %v, %s", err, out)
	}

	lab.Kill()
	lab.Start("QUITTANCE_METRICS_SOCKET=" + socket)
	text = figures(t, socket)
	for _, want := range []string{`quittance_agent_slots_used 1`, `quittance_agent_receipts_total{kind="agent_started"} 1`, `quittance_agent_receipts_total{kind="accepted"} 0`} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("after a restart: no %s", want)
		}
	}
	c.witness()
	c.retire(1)
	c.consume(1)
	if text := figures(t, socket); !strings.Contains(text, "\nquittance_agent_retirements_total{reason=\"requested\"} 1\n") || !strings.Contains(text, "\nquittance_agent_unreleased 1\n") {
		t.Errorf("after the retirement:\n%s", text)
	}
}

func figures(t *testing.T, socket string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://figures/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return string(text)
}
