package outcome

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

const reference = "att-00000000000000000000000000000001"

// origin fills every part of what an outcome says of its origin.
func origin() Origin {
	digest := protocol.DigestOf(nil)
	o := Origin{
		Reference: reference, Controller: strings.Repeat("c", api.MaxStringBytes), Agent: strings.Repeat("a", api.MaxStringBytes), Adapter: "http",
		Input: &digest, Facts: map[protocol.Number]protocol.Allocation{},
	}
	entered, large := protocol.Timestamp(1), int64(1<<62)
	scope := protocol.ScopeContainer
	for n := range protocol.Number(attempt.MaxExecutions) {
		n = protocol.MaxNumber - n
		profile := strings.Repeat("p", 40)
		o.Executions = append(o.Executions, attempt.Execution{Generation: protocol.NewID(), Number: n, Profile: profile, ProfileDigest: digest, Entered: &entered})
		o.Facts[n] = protocol.Allocation{
			Number: n, Profile: &profile, ProfileDigest: &digest, Purpose: strings.Repeat("k", 128),
			Limits:    &protocol.Limits{MemoryBytes: large, SwapBytes: large, CPUMillis: large, PIDs: large},
			Container: &protocol.Container{ImageDigest: digest, SpecDigest: digest},
			Exit:      &protocol.Exit{Source: protocol.ExitFromEngine, Code: &large, Signal: &large, At: &entered},
			OOM:       &protocol.OOM{Verdict: protocol.VerdictKilled, Scope: &scope, Counters: protocol.Counters{OOM: &large, OOMKill: &large, OOMGroupKill: &large, Max: &large, FailCnt: &large}},
			Peaks:     &protocol.Peaks{MemoryBytes: &large, PIDs: &large, CPUMicros: &large},
			StepError: strings.Repeat("\x01", protocol.MaxErrorBytes),
			Stuck:     &protocol.StuckBody{Detail: strings.Repeat("\x01", protocol.MaxErrorBytes)},
		}
	}
	return o
}

// I33: with every part at its ceiling the bodies still fit what a record keeps
// and what the routes take.
func TestEveryCeilingAtOnce(t *testing.T) {
	claims := make([]api.Claim, api.MaxClaims)
	for i := range claims {
		claims[i] = api.Claim{Name: strings.Repeat("n", api.MaxStringBytes), Value: strings.Repeat("v", api.MaxStringBytes)}
	}
	data := bytes.Repeat([]byte{0xff}, api.MaxResultBytes)
	complete, err := Complete(origin(), Result{Schema: "application/json", Data: data, Request: protocol.DigestOf(nil), Claimed: claims})
	if err != nil {
		t.Fatal(err)
	}
	var sent api.Complete
	if err := api.Decode(complete.Body, api.RouteComplete.MaxRequest, &sent); err != nil || !bytes.Equal(sent.Data, data) {
		t.Fatalf("the service would not take it: %v", err)
	}
	fail, err := Fail(origin(), Failure{
		Code: api.FailWorkerFailed, Detail: strings.Repeat("\U0001F600", 2*api.MaxMessageScalars), Entered: true,
		Cause: errors.New(strings.Repeat("\x01", 1<<20)), Worker: bytes.Repeat([]byte{0}, 64<<10),
	}, &attempt.Candidate{Operation: complete.Operation, Body: complete.Body})
	if err != nil {
		t.Fatal(err)
	}
	var said api.Fail
	if err := api.Decode(fail.Body, api.RouteFail.MaxRequest, &said); err != nil || utf8.RuneCountInString(said.Message) != api.MaxMessageScalars {
		t.Fatalf("%v, %d scalars", err, utf8.RuneCountInString(said.Message))
	}
	for _, o := range []attempt.Outcome{complete, fail} {
		if len(o.Evidence) == 0 || len(o.Evidence) > attempt.MaxEvidenceBytes {
			t.Fatalf("%d bytes of evidence", len(o.Evidence))
		}
	}
}

// One byte more than a result may have is refused, not shortened.
func TestTooLargeIsRefused(t *testing.T) {
	if _, err := Complete(origin(), Result{Schema: "application/json", Data: make([]byte, api.MaxResultBytes+1)}); err == nil {
		t.Fatal("accepted")
	}
	if _, err := Fail(origin(), Failure{Code: "nonsense"}, nil); err == nil {
		t.Fatal("an unknown code was accepted")
	}
}

// I4, I37: the worker's own words are in the evidence and nowhere else.
func TestWorkersWordsStayInTheEvidence(t *testing.T) {
	const secret = "the worker's own words"
	o, err := Fail(origin(), Failure{Code: api.FailWorkerFailed, Worker: []byte(secret), Cause: fmt.Errorf("status 500")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(o.Body, []byte(secret)) {
		t.Fatal("FAIL shows them")
	}
	var kept document
	if err := protocol.DecodeStrict(o.Evidence, attempt.MaxEvidenceBytes, &kept); err != nil || string(kept.Worker) != secret || kept.Cause != "status 500" {
		t.Fatalf("%+v, %v", kept, err)
	}
}

// I22: counters that were read while the worker lived say nothing of an end
// that nobody saw; a kill that was read stays a fact. What a result tells of the
// execution that gave it was read after its last byte, and stands.
func TestUnseenEndIsUnknown(t *testing.T) {
	code := int64(0)
	for name, row := range map[string]struct {
		exit    *protocol.Exit
		verdict protocol.Verdict
		want    protocol.Verdict
	}{
		"the end was seen":         {&protocol.Exit{Source: protocol.ExitFromEngine, Code: &code}, protocol.VerdictNotKilled, protocol.VerdictNotKilled},
		"nobody saw the end":       {nil, protocol.VerdictNotKilled, protocol.VerdictUnknown},
		"a kill was seen before":   {nil, protocol.VerdictKilled, protocol.VerdictKilled},
		"nothing was read of it":   {nil, protocol.VerdictUnknown, protocol.VerdictUnknown},
		"its end, and a kill then": {&protocol.Exit{Source: protocol.ExitFromPIDFD}, protocol.VerdictKilled, protocol.VerdictKilled},
	} {
		t.Run(name, func(t *testing.T) {
			o := origin()
			for n, a := range o.Facts {
				a.Exit, a.OOM = row.exit, &protocol.OOM{Verdict: row.verdict}
				o.Facts[n] = a
			}
			failed, err := Fail(o, Failure{Code: api.FailWorkerLost}, nil)
			if err != nil {
				t.Fatal(err)
			}
			var fail api.Fail
			if err := api.Decode(failed.Body, api.RouteFail.MaxRequest, &fail); err != nil {
				t.Fatal(err)
			}
			done, err := Complete(o, Result{Schema: "application/json", Data: []byte("{}"), Request: protocol.DigestOf(nil)})
			if err != nil {
				t.Fatal(err)
			}
			var complete api.Complete
			if err := api.Decode(done.Body, api.RouteComplete.MaxRequest, &complete); err != nil {
				t.Fatal(err)
			}
			for i, e := range fail.Provenance.Executions {
				if e.OOM.Verdict != row.want {
					t.Errorf("FAIL: execution %d: %s, want %s", i, e.OOM.Verdict, row.want)
				}
			}
			for i, e := range complete.Provenance.Executions {
				want := row.want
				if i == len(complete.Provenance.Executions)-1 {
					want = row.verdict
				}
				if e.OOM.Verdict != want {
					t.Errorf("COMPLETE: execution %d: %s, want %s", i, e.OOM.Verdict, want)
				}
			}
			for _, a := range o.Facts {
				if a.OOM.Verdict != row.verdict {
					t.Fatal("the facts were changed")
				}
			}
		})
	}
}
