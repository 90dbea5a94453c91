package words

import (
	"testing"

	"github.com/quittance/quittance/cmd/agentctl/internal/sample"
	"github.com/quittance/quittance/protocol"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 64 << 20: "64 MiB", 43548672: "41.5 MiB", 3 << 30: "3 GiB", 5 << 50: "5120 TiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestAgo(t *testing.T) {
	now := protocol.Timestamp(1_796_000_000_000_000)
	for back, want := range map[int64]string{
		0: "just now", 1_500_000: "1s ago", 90_000_000: "1m30s ago", 3 * 86400 * 1_000_000: "3 days ago", -5_000_000: "at 2026-11-30 00:53:25Z",
	} {
		if got := Ago(now-protocol.Timestamp(back), now); got != want {
			t.Errorf("%d: %q, want %q", back, got, want)
		}
	}
}

func TestExitAndOOM(t *testing.T) {
	p := sample.P[int64]
	for want, e := range map[string]protocol.Exit{
		"exit 0 (seen by engine)":             {Source: protocol.ExitFromEngine, Code: p(0)},
		"exit 137, signal 9 (seen by engine)": {Source: protocol.ExitFromEngine, Code: p(137), Signal: p(9)},
		"ended, code unknown (seen by pidfd)": {Source: protocol.ExitFromPIDFD},
		"gone with the machine's restart":     {Source: protocol.ExitFromReboot},
		"ended, seen by nobody":               {Source: protocol.ExitFromNone},
	} {
		if got := Exit(e); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	killed := protocol.OOM{
		Verdict: protocol.VerdictKilled, Scope: sample.P(protocol.ScopeContainer), Source: protocol.CountersFromV1,
		Counters: protocol.Counters{OOMKill: p(1), FailCnt: p(12)},
	}
	if got := OOM(killed); got != "killed, scope container (oom_kill 1, failcnt 12; cgroup_v1)" {
		t.Errorf("%q", got)
	}
	if got := OOM(protocol.OOM{Verdict: protocol.VerdictUnknown, Source: protocol.CountersFromNone}); got != "unknown" {
		t.Errorf("%q", got)
	}
	peaks, limits := &protocol.Peaks{MemoryBytes: p(32 << 20)}, &protocol.Limits{MemoryBytes: 64 << 20}
	if got := Peak(peaks, limits); got != "32 MiB of 64 MiB (50 %)" {
		t.Errorf("%q", got)
	}
	if got := Peak(&protocol.Peaks{}, limits); got != "" {
		t.Errorf("%q", got)
	}
}

// Every receipt of the sample history is put into words that name its facts.
func TestReceipts(t *testing.T) {
	l := sample.History()
	l.Append(protocol.KindStuck, 3, protocol.StuckBody{Step: "kill", ProcessState: "D", WaitChannel: "nfs_wait", Detail: "deadline", SinceMillis: 61000, Suppressed: 2})
	l.Append(protocol.KindUnstuck, 3, protocol.UnstuckBody{StuckMillis: 90500})
	l.Append(protocol.KindAccepted, 4, protocol.AcceptedBody{Owner: sample.Owner, Purpose: "late", Devices: []protocol.Device{}})
	l.Append(protocol.KindRetired, 4, protocol.RetiredBody{Reason: protocol.ReasonSetupFailed, Error: "no image"})
	l.Append(protocol.KindReleased, 0, protocol.ReleasedBody{Frontier: 4, Except: []protocol.Number{3}})
	l.Append(protocol.KindDrained, 0, protocol.DrainBody{UID: 0})
	l.Append(protocol.KindOwnerChanged, 0, protocol.OwnerChangedBody{From: sample.P(sample.Owner), To: sample.Boot, UID: 0})
	l.Append("measured", 0, protocol.DrainBody{})
	want := []string{
		"agent 1.2.3, boot 01234567",
		"agent 1.2.3, boot 01234567",
		"langid for attempt-1, 64 MiB",
		"pid 4001, created in 140ms, started in 25ms",
		"exit 0 (seen by engine), OOM not_killed, peak 3 MiB",
		"requested by controller, OOM not_killed, removed in 70ms",
		"receipt 5",
		"up to 1",
		"ocr-small for attempt-2, 64 MiB",
		"pid 4002, created in 140ms, started in 25ms",
		"oom_kill 1, failcnt 12",
		"exit 137, signal 9 (seen by engine), OOM killed/container, peak 64 MiB",
		"requested by controller, OOM killed/container, removed in 70ms",
		"receipt 12",
		"ocr for attempt-3, 384 MiB",
		"pid 4003, created in 140ms, started in 25ms",
		"at kill for 1m1s, process state D in nfs_wait: deadline, 2 more not recorded",
		"after 1m31s",
		"burnt for late",
		"setup_failed, never dispatched: no image",
		"up to 4, stuck and carried along: 3",
		"by uid 0",
		"from ffeeddcc to 01234567 by uid 0",
		"a kind that this version does not know",
	}
	if len(want) != len(l.Leaves) {
		t.Fatalf("%d receipts, %d wordings", len(l.Leaves), len(want))
	}
	for i, leaf := range l.Leaves {
		r, err := protocol.DecodeReceipt(leaf)
		if err != nil {
			t.Fatal(err)
		}
		if got := Receipt(r); got != want[i] {
			t.Errorf("receipt %d: %q, want %q", i, got, want[i])
		}
	}
}
