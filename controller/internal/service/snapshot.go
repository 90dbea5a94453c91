package service

import "time"

// Snapshot is what the lanes of a process share, as it is now.
type Snapshot struct {
	Lanes    int
	Taken    int             // jobs in the hands of a lane
	Breakers map[string]bool // by kind; true: the offering takes no job
	Blocked  string          // why nothing is admitted, or ""
	Causes   map[Cause]bool  // of that, each of [Causes]
	HostSeen bool            // the host answered at the last hello, also where ledger and store do not agree
}

// Snapshot reads it, for the metrics; it waits for nothing but a short lock.
func (s *Service) Snapshot() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	out := Snapshot{Lanes: s.Lanes, Taken: len(s.taken), Breakers: map[string]bool{}, Blocked: s.reason, HostSeen: s.hostSeen, Causes: map[Cause]bool{}}
	for _, c := range Causes() {
		out.Causes[c] = c == s.cause
	}
	if s.stopping.Load() {
		// No admission looks any more: what one told last is no longer known, and
		// only maintenance still says what needs a person.
		for _, c := range Causes() {
			out.Causes[c] = c == CauseDrain || c == CausePerson && s.kept != ""
		}
		if out.Blocked = errDrain.Error(); s.reason != "" {
			out.Blocked += "; " + s.reason
		}
	}
	for kind, b := range s.breakers {
		out.Breakers[kind], _ = b.Open(now)
	}
	return out
}
