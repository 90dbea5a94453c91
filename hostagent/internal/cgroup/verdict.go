package cgroup

import "github.com/quittance/quittance/protocol"

// Reading is what the counters of a group said at one moment.
type Reading struct {
	// Source is none where the group is gone or not ours any more.
	Source protocol.CounterSource
	// Counters are absolute. On v1 FailCnt is the sum of the failure counts of
	// memory and memory-plus-swap on both levels: whichever limit is reached
	// first counts, and with no swap allowed that is memory-plus-swap.
	Counters protocol.Counters
	Peaks    protocol.Peaks
	// LeafGone says that the container's own cgroup is gone: on v1 its
	// oom_kill went with it, on v2 the marks of a userspace OOM daemon did.
	LeafGone bool
	// LimitReached says that usage once came as near to one of our own limits
	// as it does at an OOM for that limit (v1). It stands in for FailCnt where
	// the kernel does not count failures of memory-plus-swap (6.13 and later).
	LimitReached bool
	// DaemonMarks is the sum of the marks that a userspace OOM daemon left on
	// leaf and parent.
	DaemonMarks int64
}

// Evidence is what was seen of a group beside its counters.
type Evidence struct {
	// LimitEvents counts the leaf's own OOM events while it was watched
	// (v1, where no counter tells them).
	LimitEvents int64
	// OOMDaemon says that a userspace OOM daemon runs on this machine.
	OOMDaemon bool
}

// Verdict answers whether the kernel, or a userspace OOM daemon by its mark,
// killed for memory between the baseline and the final reading, and for whose
// limit (I22). Nothing but counters, marks and events decides: no exit status,
// no log. The counters in the answer are the deltas (I24), null where either
// reading has none.
//
//	oom_kill rose, v2:  oom rose too → container; only oom_kill → host
//	oom_kill rose, v1:  failcnt did not rise and no limit of ours was reached
//	                    → host; else the leaf's event fired → container;
//	                    else → unknown scope
//	not risen, daemon's mark → killed, daemon
//	not risen, counters readable after the end → not_killed
//	nothing readable, a counter that fell, a v1 leaf that is gone, a v2 leaf
//	that is gone while a daemon runs → unknown
func Verdict(baseline protocol.Counters, final Reading, seen Evidence) protocol.OOM {
	out := protocol.OOM{Verdict: protocol.VerdictUnknown, Source: final.Source, OOMD: final.DaemonMarks > 0}
	if final.Source == protocol.CountersFromNone || final.Source == "" {
		out.Source = protocol.CountersFromNone
		return out
	}
	fell := false
	delta := func(before, after *int64) *int64 {
		if before == nil || after == nil {
			return nil
		}
		if *after < *before {
			fell = true
			return nil
		}
		d := *after - *before
		return &d
	}
	out.Counters = protocol.Counters{
		OOM:          delta(baseline.OOM, final.Counters.OOM),
		OOMKill:      delta(baseline.OOMKill, final.Counters.OOMKill),
		OOMGroupKill: delta(baseline.OOMGroupKill, final.Counters.OOMGroupKill),
		Max:          delta(baseline.Max, final.Counters.Max),
		FailCnt:      delta(baseline.FailCnt, final.Counters.FailCnt),
	}
	if fell {
		// Counters only ever rise: these are not the ones of the baseline.
		return out
	}
	kills := out.Counters.OOMKill
	switch {
	case kills != nil && *kills > 0:
		out.Verdict = protocol.VerdictKilled
		out.Scope = scopeOf(out.Counters, final, seen)
	case out.OOMD:
		out.Verdict = protocol.VerdictKilled
		scope := protocol.ScopeDaemon
		out.Scope = &scope
	case kills == nil:
	case final.LeafGone && (final.Source == protocol.CountersFromV1 || seen.OOMDaemon):
	default:
		out.Verdict = protocol.VerdictNotKilled
	}
	return out
}

// scopeOf says for whose limit the kernel killed.
func scopeOf(delta protocol.Counters, final Reading, seen Evidence) *protocol.Scope {
	scope, source := protocol.ScopeUnknown, final.Source
	switch {
	case source == protocol.CountersFromV2 && delta.OOM != nil && *delta.OOM > 0:
		scope = protocol.ScopeContainer
	case source == protocol.CountersFromV2 && delta.OOM != nil:
		scope = protocol.ScopeHost
	case source == protocol.CountersFromV1 && delta.FailCnt == nil:
	case source == protocol.CountersFromV1 && *delta.FailCnt == 0 && !final.LimitReached:
		// Before the event: an OOM of a cgroup above ours announces itself to
		// all below it, but only at a limit of ours is one of ours reached.
		scope = protocol.ScopeHost
	case source == protocol.CountersFromV1 && seen.LimitEvents > 0:
		scope = protocol.ScopeContainer
	}
	return &scope
}
