package publisher

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/protocol"
)

const reference = "att-00000000000000000000000000000001"

// memory is a record that is nowhere but here.
type memory struct{ record attempt.Record }

func (m *memory) Key() string            { return "a" }
func (m *memory) Record() attempt.Record { return m.record }

func (m *memory) Apply(_ context.Context, event attempt.Event) error {
	next, err := attempt.Step(m.record, event)
	if err == nil {
		m.record = next
	}
	return err
}

func pending(t *testing.T, settlement attempt.Settlement, receipts int) *memory {
	t.Helper()
	m := &memory{attempt.StartPending{Origin: attempt.Origin{
		Scope: attempt.Scope{APIOrigin: "o", Provider: "p", Consumer: "c", Generation: "1"}, Key: "a", Job: "j", Kind: "k",
		Input: attempt.Input{SHA256: protocol.DigestOf(nil)}, MaxExecutions: 1, Start: []byte("{}"),
	}}}
	generation := protocol.NewID()
	events := []attempt.Event{
		attempt.Admitted{Admission: attempt.Admission{Reference: reference}},
		attempt.Allocated{Generation: generation, Number: 1, Profile: "p", ProfileDigest: protocol.DigestOf(nil)},
		attempt.OutcomeChosen{Outcome: attempt.Outcome{Operation: attempt.OperationFail, Body: []byte("the exact bytes"), Evidence: []byte("e")}},
	}
	if receipts > 0 {
		events = append(events, attempt.ReceiptsSaved{Generation: generation, Number: 1, HostKey: "key", Receipts: []attempt.SavedReceipt{{Index: 3, Leaf: []byte("leaf"), Proof: []byte("proof")}}})
	}
	if settlement != attempt.SettlementOpen {
		events = append(events, attempt.Settled{Generation: generation, Number: 1, Settlement: settlement})
	}
	for _, e := range events {
		if err := m.Apply(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// service answers from a list; nil is a matching receipt.
type service struct {
	answers []error
	bodies  []string
	sheets  []api.HostReceipts
}

func (s *service) next() (attempt.Reply, error) {
	err := s.answers[0]
	s.answers = s.answers[1:]
	if f, ok := errors.AsType[*provider.Failure](err); ok {
		return f.Reply, f
	}
	return attempt.Reply{Status: 200}, err
}

func (s *service) Complete(context.Context, string, []byte) (api.CompleteReceipt, attempt.Reply, error) {
	return api.CompleteReceipt{}, attempt.Reply{}, errors.New("a FAIL was sent as COMPLETE")
}

func (s *service) Fail(_ context.Context, _ string, body []byte) (api.FailReceipt, attempt.Reply, error) {
	s.bodies = append(s.bodies, string(body))
	reply, err := s.next()
	return api.FailReceipt{}, reply, err
}

func (s *service) Receipts(_ context.Context, _ string, r api.HostReceipts) (api.HostReceiptsAnswer, attempt.Reply, error) {
	s.sheets = append(s.sheets, r)
	reply, err := s.next()
	return api.HostReceiptsAnswer{}, reply, err
}

func newPublisher(answers ...error) (*Publisher, *service) {
	s := &service{answers: answers}
	return &Publisher{API: s, Log: hclog.NewNullLogger(), Policy: retry.Policy{Window: time.Hour, Initial: time.Second, Max: time.Minute}}, s
}

func refused(code api.Code) error {
	return &provider.Failure{Class: provider.ClassRefused, Disposition: protocol.Refused, Status: code.Status(), Code: code, Reply: attempt.Reply{Status: code.Status()}}
}

var lost = &provider.Failure{Class: provider.ClassLost, Disposition: protocol.Unknown, Repeat: true}

// Each answer and what the record becomes; the same bytes every time (I26).
func TestPublish(t *testing.T) {
	for name, row := range map[string]struct {
		answers []error
		want    attempt.State
		reason  attempt.HoldReason
	}{
		"confirmed":        {[]error{nil}, attempt.StateTerminalConfirmed, ""},
		"lost, confirmed":  {[]error{lost, lost, nil}, attempt.StateTerminalConfirmed, ""},
		"expired":          {[]error{refused(api.CodeAttemptExpired)}, attempt.StateTerminalHeld, attempt.HoldExpired},
		"opposite":         {[]error{lost, refused(api.CodeOppositeOutcome)}, attempt.StateTerminalHeld, attempt.HoldOppositeOutcome},
		"other bytes":      {[]error{refused(api.CodeOutcomeConflict)}, attempt.StateTerminalHeld, attempt.HoldMismatch},
		"not visible":      {[]error{refused(api.CodeNotFound)}, attempt.StateTerminalHeld, attempt.HoldNotVisible},
		"a bad signature":  {[]error{refused(api.CodeBadSignature)}, attempt.StateTerminalPending, ""},
		"another topology": {[]error{&provider.Failure{Class: provider.ClassTopology}}, attempt.StateTerminalPending, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := pending(t, attempt.SettlementConsumed, 1)
				p, s := newPublisher(row.answers...)
				err := p.Publish(t.Context(), m)
				if m.record.State() != row.want || (err == nil) != (row.want != attempt.StateTerminalPending) {
					t.Fatalf("%s, %v", m.record.State(), err)
				}
				if held, ok := m.record.(attempt.TerminalHeld); ok && held.Reason != row.reason {
					t.Fatalf("held for %s", held.Reason)
				}
				if len(s.bodies) != len(row.answers) {
					t.Fatalf("%d sends, want %d", len(s.bodies), len(row.answers))
				}
				for _, b := range s.bodies {
					if b != "the exact bytes" {
						t.Fatalf("sent %q", b)
					}
				}
			})
		})
	}
}

// I31: nothing is published before the worker's end is a fact.
func TestPublishWaitsForTheHost(t *testing.T) {
	m := pending(t, attempt.SettlementOpen, 0)
	p, s := newPublisher(nil)
	if err := p.Publish(t.Context(), m); err == nil || len(s.bodies) != 0 {
		t.Fatalf("%v, %d sends", err, len(s.bodies))
	}
}

func TestAttach(t *testing.T) {
	for name, row := range map[string]struct {
		answers  []error
		receipts int
		attached bool
		sends    int
		fails    bool
	}{
		"taken":             {[]error{lost, nil}, 1, true, 2, false},
		"refused for good":  {[]error{refused(api.CodeReceiptConflict)}, 1, false, 1, false},
		"a broken answer":   {[]error{&provider.Failure{Class: provider.ClassMalformed}}, 1, false, 1, true},
		"nothing to attach": {nil, 0, false, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				settlement := attempt.SettlementConsumed
				if row.receipts == 0 {
					settlement = attempt.SettlementGenerationGone
				}
				m := pending(t, settlement, row.receipts)
				p, s := newPublisher(append([]error{nil}, row.answers...)...)
				if err := p.Publish(t.Context(), m); err != nil {
					t.Fatal(err)
				}
				err := p.Attach(t.Context(), m)
				answer := attempt.AnswerOf(m.record)
				if (err != nil) != row.fails || (answer == nil) != row.fails || answer != nil && answer.Attached != row.attached || len(s.sheets) != row.sends {
					t.Fatalf("%v, %+v, %d sends", err, answer, len(s.sheets))
				}
				if row.sends > 0 && (s.sheets[0].Key != "key" || string(s.sheets[0].Receipts[0].Leaf) != "leaf" || s.sheets[0].Attempt != reference) {
					t.Fatalf("%+v", s.sheets[0])
				}
				if !row.fails && !attempt.Archivable(m.record) {
					t.Fatal("the record cannot be archived")
				}
			})
		})
	}
}

// I26: an outcome that the service confirmed and lost is sent again byte for
// byte, its receipts after it; the record stays, whatever becomes of either.
func TestRepeatSendsTheSameBytes(t *testing.T) {
	lost := &provider.Failure{Operation: "fail", Class: provider.ClassLost, Repeat: true}
	for name, row := range map[string]struct {
		receipts int
		answers  []error
		sheets   int
		taken    bool
	}{
		"taken":                        {1, []error{nil, nil}, 1, true},
		"taken without any receipts":   {0, []error{nil}, 0, true},
		"taken, its receipts are not":  {1, []error{nil, lost}, 1, true},
		"not taken: nothing more sent": {1, []error{lost}, 0, false},
	} {
		m := pending(t, attempt.SettlementConsumed, row.receipts)
		if err := m.Apply(t.Context(), attempt.Confirmed{Receipt: attempt.Reply{Status: 200}}); err != nil {
			t.Fatal(err)
		}
		record := m.Record().(attempt.TerminalConfirmed)
		s := &service{answers: row.answers}
		p := &Publisher{API: s, Log: hclog.NewNullLogger()}
		if err := p.Repeat(t.Context(), "a", record); (err == nil) != row.taken {
			t.Errorf("%s: %v", name, err)
		}
		if len(s.bodies) != 1 || s.bodies[0] != "the exact bytes" || len(s.sheets) != row.sheets || len(s.answers) != 0 {
			t.Errorf("%s: sent %q and %d sheets", name, s.bodies, len(s.sheets))
		}
	}
}
