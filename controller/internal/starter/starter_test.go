package starter

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/claims"
	"github.com/quittance/quittance/controller/internal/journal"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
)

// answer is one scripted answer to START.
type answer struct {
	state   api.AttemptState // of an admission
	failure *provider.Failure
	aheadBy time.Duration // of the service's clock, for the failure's date
	after   time.Duration // the exchange takes
}

// service plays a script and remembers every body.
type service struct {
	script []answer
	bodies []string
}

const reference = "att-00000000000000000000000000000001"

func (s *service) Start(_ context.Context, body []byte, beforeSend func(time.Time) error) (api.Admission, attempt.Reply, error) {
	if err := beforeSend(time.Now().Add(time.Minute)); err != nil {
		return api.Admission{}, attempt.Reply{}, err
	}
	s.bodies = append(s.bodies, string(body))
	a := s.script[0]
	s.script = s.script[1:]
	time.Sleep(a.after)
	if a.failure != nil {
		f := *a.failure
		f.Date = time.Now().Add(a.aheadBy)
		return api.Admission{}, f.Reply, &f
	}
	return api.Admission{Attempt: reference, State: a.state}, attempt.Reply{Status: 201, Body: []byte("{}")}, nil
}

var (
	lost    = &provider.Failure{Operation: "start", Class: provider.ClassLost, Disposition: protocol.Unknown, Repeat: true}
	unsent  = &provider.Failure{Operation: "start", Class: provider.ClassUnreachable, Disposition: protocol.Refused, Repeat: true}
	busy    = &provider.Failure{Operation: "start", Class: provider.ClassRefused, Disposition: protocol.Refused, Status: 409, Code: api.CodeJobBusy, Reply: attempt.Reply{Status: 409}}
	nohello = &provider.Failure{Operation: "start", Class: provider.ClassRefused, Disposition: protocol.Refused, Status: 409, Code: api.CodeHelloRequired}
	taken   = &provider.Failure{Operation: "start", Class: provider.ClassRefused, Disposition: protocol.Refused, Status: 409, Code: api.CodeKeyConflict}
)

var scope = attempt.Scope{APIOrigin: "http://127.0.0.1:1", Provider: "node", Consumer: "c", Generation: "1"}

var job = api.FeedJob{Job: "job-00000000000000000000000000000001", Kind: "k", Input: api.Identity{Schema: "text/plain", SHA256: protocol.DigestOf(nil)}}

func begin(t *testing.T, script ...answer) (*Starter, *service, *journal.Attempt) {
	t.Helper()
	cfg := store.Config{Dir: t.TempDir() + "/attempts", Scope: scope, MaxActive: 4, History: 4}
	if err := store.Create(cfg); err != nil {
		t.Fatal(err)
	}
	records, err := store.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := records.Close(); err != nil {
			t.Error(err)
		}
	})
	remote := &service{script: script}
	s := &Starter{
		API: remote, Store: records, Claims: &claims.Table{}, Scope: scope, Log: hclog.NewNullLogger(),
		Policy: retry.Policy{Window: 10 * time.Minute, Initial: time.Second, Max: 30 * time.Second},
	}
	j, err := s.Begin(t.Context(), 0, job, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := j.Record().(attempt.StartPending); !ok {
		t.Fatalf("the record before the first send is %s", j.Record().State())
	}
	return s, remote, j
}

// I26: every send has the record's exact bytes.
func sameBytes(t *testing.T, remote *service, j *journal.Attempt, sends int) {
	t.Helper()
	if len(remote.bodies) != sends {
		t.Fatalf("%d sends, want %d", len(remote.bodies), sends)
	}
	for _, b := range remote.bodies {
		if b != string(attempt.OriginOf(j.Record()).Start) {
			t.Fatal("a send had other bytes than the record")
		}
	}
}

func TestAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, remote, j := begin(t, answer{failure: unsent}, answer{failure: lost}, answer{failure: nohello}, answer{state: api.AttemptInProgress})
		if err := s.Send(t.Context(), j); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, remote, j, 4)
		if _, ok := j.Record().(attempt.Acknowledged); !ok || j.Reference() != reference || j.Claim().Identity().Reference != reference {
			t.Fatalf("%s, reference %s", j.Record().State(), j.Reference())
		}
	})
}

// A replay that is answered with an attempt that is over runs nothing.
func TestReplayAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, j := begin(t, answer{state: api.AttemptFailed})
		if err := s.Send(t.Context(), j); err != nil {
			t.Fatal(err)
		}
		if r, ok := j.Record().(attempt.Ended); !ok || r.Reason != attempt.EndFailed || r.Admission == nil {
			t.Fatalf("%+v", j.Record())
		}
	})
}

// Losing a job to another node is ordinary.
func TestRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, remote, j := begin(t, answer{failure: busy})
		if err := s.Send(t.Context(), j); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, remote, j, 1)
		if r, ok := j.Record().(attempt.Ended); !ok || r.Reason != attempt.EndStartRefused || r.Reply.Status != 409 {
			t.Fatalf("%+v", j.Record())
		}
	})
}

// I11: a refusal is believed only once the service's date is later than the
// expiry of every earlier send whose answer is unknown.
func TestRefusedAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		script := []answer{{failure: lost}}
		for range 20 {
			script = append(script, answer{failure: busy})
		}
		s, remote, j := begin(t, script...)
		began := time.Now()
		if err := s.Send(t.Context(), j); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited < time.Minute {
			t.Fatalf("a refusal was believed after %s, before the lost send had expired", waited)
		}
		sameBytes(t, remote, j, len(remote.bodies))
		if r, ok := j.Record().(attempt.Ended); !ok || r.Reason != attempt.EndStartRefused {
			t.Fatalf("%+v", j.Record())
		}
	})
}

// The same holds for sends of an earlier process, whose answers nobody knows.
func TestRefusedAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, remote, j := begin(t)
		if err := j.Apply(t.Context(), attempt.StartSending{Expires: protocol.TimestampOf(time.Now().Add(40 * time.Second))}); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			remote.script = append(remote.script, answer{failure: busy})
		}
		began := time.Now()
		if err := s.Send(t.Context(), j); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited < 40*time.Second {
			t.Fatalf("believed after %s", waited)
		}
	})
}

// A conflict under our key is never repeated; the record stays for a person.
func TestKeyConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, remote, j := begin(t, answer{failure: taken})
		err := s.Send(t.Context(), j)
		if e, ok := errors.AsType[*retry.Error](err); !ok || e.Cause != retry.CauseFinal {
			t.Fatalf("%v", err)
		}
		sameBytes(t, remote, j, 1)
		if _, ok := j.Record().(attempt.StartPending); !ok {
			t.Fatalf("%s", j.Record().State())
		}
	})
}

// I30: a reference that somebody else acts on leaves both claims as they are.
func TestReferenceClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, j := begin(t, answer{state: api.AttemptInProgress})
		other, err := s.Claims.Claim("other")
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Bind(reference); err != nil {
			t.Fatal(err)
		}
		if err := s.Send(t.Context(), j); !errors.Is(err, claims.ErrReferenceClaimed) {
			t.Fatalf("%v", err)
		}
		if _, ok := j.Record().(attempt.StartPending); !ok || other.Identity().Reference != reference {
			t.Fatal("a claim changed")
		}
	})
}
