package exit

import (
	"errors"
	"fmt"
	"testing"

	"github.com/quittance/quittance/cmd/agentctl/internal/jobclient"
	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// The exit codes are a contract with scripts: each error of both clients has
// the one that 07-operations names.
func TestCodes(t *testing.T) {
	lost := &hostclient.LostError{Op: "PUT x", Err: errors.New("reset")}
	for name, c := range map[string]struct {
		err  error
		want Code
	}{
		"nothing":                   {nil, 0},
		"any":                       {errors.New("x"), 1},
		"own":                       {With(JobOOM, errors.New("x")), 11},
		"wrapped":                   {fmt.Errorf("x: %w", With(NotFound, errors.New("y"))), 4},
		"host refuses":              {protocol.NewProblem(protocol.CodeNumberConflict, "", ""), 3},
		"host forbids":              {protocol.NewProblem(protocol.CodeForbidden, "", ""), 3},
		"host does not know":        {protocol.NewProblem(protocol.CodeNotFound, "", ""), 4},
		"host released":             {protocol.NewProblem(protocol.CodeReleased, "", ""), 4},
		"host engine down":          {protocol.NewProblem(protocol.CodeEngineUnavailable, "", ""), 5},
		"host connections":          {protocol.NewProblem(protocol.CodeTooManyConnections, "", ""), 5},
		"host does not know effect": {protocol.NewProblem(protocol.CodeInternal, "", ""), 6},
		"host unreachable":          {&hostclient.UnreachableError{Op: "GET x", Err: errors.New("x")}, 5},
		"host lost":                 {lost, 6},
		"host lost reading":         {Reading(lost), 5},
		"malformed":                 {&protocol.DecodeError{Field: "/note", Reason: "x"}, 2},
		"service refuses":           {api.NewProblem(api.CodeInvalidInput, "", ""), 3},
		"service does not know":     {api.NewProblem(api.CodeNotFound, "", ""), 4},
		"service no result":         {api.NewProblem(api.CodeNoResult, "", ""), 4},
		"service limits":            {api.NewProblem(api.CodeLimitReached, "", ""), 5},
		"service fails":             {api.NewProblem(api.CodeUnavailable, "", ""), 6},
		"service unreachable":       {&jobclient.UnreachableError{Op: "GET x", Err: errors.New("x")}, 5},
		"service lost":              {&jobclient.LostError{Op: "POST x", Err: errors.New("x")}, 6},
		"service lost reading":      {Reading(&jobclient.LostError{Op: "GET x", Err: errors.New("x")}), 5},
	} {
		if got := Of(c.err); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if With(Refused, nil) != nil || Reading(nil) != nil {
		t.Error("nothing became an error")
	}
	for i, code := range []Code{Done, Failure, Usage, Refused, NotFound, Unavailable, Unknown} {
		if int(code) != i {
			t.Errorf("code %d has value %d", i, code)
		}
	}
	for i, code := range []Code{JobFailed, JobOOM, JobCancelled, JobExpired} {
		if int(code) != 10+i {
			t.Errorf("verdict %d has value %d", i, code)
		}
	}
}
