package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/quittance/quittance/protocol"
)

func n(v int64) *int64 { return &v }

func scope(s protocol.Scope) *protocol.Scope { return &s }

// I22, I24, FR-03, FR-04, FR-07, FR-08: every rule of the verdict, on both
// versions, with the deltas that are published beside it.
func TestVerdict(t *testing.T) {
	v1Base := protocol.Counters{OOMKill: n(0), FailCnt: n(4)}
	v2Base := protocol.Counters{OOM: n(1), OOMKill: n(1), OOMGroupKill: n(0), Max: n(7)}
	tests := []struct {
		name     string
		baseline protocol.Counters
		final    Reading
		seen     Evidence
		want     protocol.OOM
	}{
		{
			name: "v2 own limit", baseline: v2Base,
			final: Reading{Source: protocol.CountersFromV2, Counters: protocol.Counters{OOM: n(2), OOMKill: n(2), OOMGroupKill: n(0), Max: n(9)}},
			want: protocol.OOM{
				Verdict: protocol.VerdictKilled, Scope: scope(protocol.ScopeContainer), Source: protocol.CountersFromV2,
				Counters: protocol.Counters{OOM: n(1), OOMKill: n(1), OOMGroupKill: n(0), Max: n(2)},
			},
		},
		{
			name: "v2 own limit, whole group", baseline: v2Base,
			final: Reading{Source: protocol.CountersFromV2, LeafGone: true, Counters: protocol.Counters{OOM: n(2), OOMKill: n(5), OOMGroupKill: n(1), Max: n(9)}},
			want: protocol.OOM{
				Verdict: protocol.VerdictKilled, Scope: scope(protocol.ScopeContainer), Source: protocol.CountersFromV2,
				Counters: protocol.Counters{OOM: n(1), OOMKill: n(4), OOMGroupKill: n(1), Max: n(2)},
			},
		},
		{
			name: "v2 machine out of memory", baseline: v2Base,
			final: Reading{Source: protocol.CountersFromV2, Counters: protocol.Counters{OOM: n(1), OOMKill: n(2), OOMGroupKill: n(0), Max: n(7)}},
			want: protocol.OOM{
				Verdict: protocol.VerdictKilled, Scope: scope(protocol.ScopeHost), Source: protocol.CountersFromV2,
				Counters: protocol.Counters{OOM: n(0), OOMKill: n(1), OOMGroupKill: n(0), Max: n(0)},
			},
		},
		{
			name: "v2 only reclaim", baseline: v2Base,
			final: Reading{Source: protocol.CountersFromV2, Counters: protocol.Counters{OOM: n(1), OOMKill: n(1), OOMGroupKill: n(0), Max: n(4000)}},
			want: protocol.OOM{
				Verdict: protocol.VerdictNotKilled, Source: protocol.CountersFromV2,
				Counters: protocol.Counters{OOM: n(0), OOMKill: n(0), OOMGroupKill: n(0), Max: n(3993)},
			},
		},
		{
			name: "v2 leaf gone, no daemon", baseline: v2Base,
			final: Reading{Source: protocol.CountersFromV2, LeafGone: true, Counters: v2Base},
			want: protocol.OOM{
				Verdict: protocol.VerdictNotKilled, Source: protocol.CountersFromV2,
				Counters: protocol.Counters{OOM: n(0), OOMKill: n(0), OOMGroupKill: n(0), Max: n(0)},
			},
		},
		{
			name: "v2 leaf gone, daemon may have marked it", baseline: v2Base, seen: Evidence{OOMDaemon: true},
			final: Reading{Source: protocol.CountersFromV2, LeafGone: true, Counters: v2Base},
			want: protocol.OOM{
				Verdict: protocol.VerdictUnknown, Source: protocol.CountersFromV2,
				Counters: protocol.Counters{OOM: n(0), OOMKill: n(0), OOMGroupKill: n(0), Max: n(0)},
			},
		},
		{
			name: "v2 daemon's mark", baseline: v2Base, seen: Evidence{OOMDaemon: true},
			final: Reading{Source: protocol.CountersFromV2, Counters: v2Base, DaemonMarks: 2},
			want: protocol.OOM{
				Verdict: protocol.VerdictKilled, Scope: scope(protocol.ScopeDaemon), Source: protocol.CountersFromV2, OOMD: true,
				Counters: protocol.Counters{OOM: n(0), OOMKill: n(0), OOMGroupKill: n(0), Max: n(0)},
			},
		},
		{
			name: "v2 kernel's kill beside a daemon's mark", baseline: v2Base,
			final: Reading{Source: protocol.CountersFromV2, Counters: protocol.Counters{OOM: n(2), OOMKill: n(2), OOMGroupKill: n(0), Max: n(7)}, DaemonMarks: 1},
			want: protocol.OOM{
				Verdict: protocol.VerdictKilled, Scope: scope(protocol.ScopeContainer), Source: protocol.CountersFromV2, OOMD: true,
				Counters: protocol.Counters{OOM: n(1), OOMKill: n(1), OOMGroupKill: n(0), Max: n(0)},
			},
		},
		{
			name: "counters fell: not those of the baseline", baseline: v2Base,
			final: Reading{Source: protocol.CountersFromV2, Counters: protocol.Counters{OOM: n(0), OOMKill: n(0), OOMGroupKill: n(0), Max: n(0)}},
			want: protocol.OOM{
				Verdict: protocol.VerdictUnknown, Source: protocol.CountersFromV2,
				Counters: protocol.Counters{OOMGroupKill: n(0)},
			},
		},
		{
			name: "v1 own limit, event fired", baseline: v1Base, seen: Evidence{LimitEvents: 1},
			final: Reading{Source: protocol.CountersFromV1, Counters: protocol.Counters{OOMKill: n(1), FailCnt: n(9)}},
			want: protocol.OOM{
				Verdict: protocol.VerdictKilled, Scope: scope(protocol.ScopeContainer), Source: protocol.CountersFromV1,
				Counters: protocol.Counters{OOMKill: n(1), FailCnt: n(5)},
			},
		},
		{
			name: "v1 own limit on a kernel that does not count its failures", baseline: v1Base, seen: Evidence{LimitEvents: 1},
			final: Reading{Source: protocol.CountersFromV1, LimitReached: true, Counters: protocol.Counters{OOMKill: n(1), FailCnt: n(4)}},
			want: protocol.OOM{
				Verdict: protocol.VerdictKilled, Scope: scope(protocol.ScopeContainer), Source: protocol.CountersFromV1,
				Counters: protocol.Counters{OOMKill: n(1), FailCnt: n(0)},
			},
		},
		{
			name: "v1 limit above ours announces itself to all below", baseline: v1Base, seen: Evidence{LimitEvents: 1},
			final: Reading{Source: protocol.CountersFromV1, Counters: protocol.Counters{OOMKill: n(1), FailCnt: n(4)}},
			want: protocol.OOM{
				Verdict: protocol.VerdictKilled, Scope: scope(protocol.ScopeHost), Source: protocol.CountersFromV1,
				Counters: protocol.Counters{OOMKill: n(1), FailCnt: n(0)},
			},
		},
		{
			name: "v1 machine out of memory", baseline: v1Base,
			final: Reading{Source: protocol.CountersFromV1, Counters: protocol.Counters{OOMKill: n(1), FailCnt: n(4)}},
			want: protocol.OOM{
				Verdict: protocol.VerdictKilled, Scope: scope(protocol.ScopeHost), Source: protocol.CountersFromV1,
				Counters: protocol.Counters{OOMKill: n(1), FailCnt: n(0)},
			},
		},
		{
			name: "v1 killed while nobody watched", baseline: v1Base,
			final: Reading{Source: protocol.CountersFromV1, Counters: protocol.Counters{OOMKill: n(1), FailCnt: n(9)}},
			want: protocol.OOM{
				Verdict: protocol.VerdictKilled, Scope: scope(protocol.ScopeUnknown), Source: protocol.CountersFromV1,
				Counters: protocol.Counters{OOMKill: n(1), FailCnt: n(5)},
			},
		},
		{
			name: "v1 not killed", baseline: v1Base, seen: Evidence{LimitEvents: 1},
			final: Reading{Source: protocol.CountersFromV1, LimitReached: true, Counters: protocol.Counters{OOMKill: n(0), FailCnt: n(90)}},
			want: protocol.OOM{
				Verdict: protocol.VerdictNotKilled, Source: protocol.CountersFromV1,
				Counters: protocol.Counters{OOMKill: n(0), FailCnt: n(86)},
			},
		},
		{
			name: "v1 leaf gone", baseline: v1Base, seen: Evidence{LimitEvents: 1},
			final: Reading{Source: protocol.CountersFromV1, LeafGone: true},
			want:  protocol.OOM{Verdict: protocol.VerdictUnknown, Source: protocol.CountersFromV1},
		},
		{
			name: "nothing readable", baseline: v1Base,
			final: Reading{Source: protocol.CountersFromNone, LeafGone: true},
			want:  protocol.OOM{Verdict: protocol.VerdictUnknown, Source: protocol.CountersFromNone},
		},
		{
			name: "no reading at all", baseline: v2Base,
			want: protocol.OOM{Verdict: protocol.VerdictUnknown, Source: protocol.CountersFromNone},
		},
		{
			name:  "no baseline",
			final: Reading{Source: protocol.CountersFromV2, Counters: v2Base},
			want:  protocol.OOM{Verdict: protocol.VerdictUnknown, Source: protocol.CountersFromV2},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, Verdict(test.baseline, test.final, test.seen)); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}
