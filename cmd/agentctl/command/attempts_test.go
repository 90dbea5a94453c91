package command

import (
	"net/http"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/quittance/quittance/controller/api/operator"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/uds"
)

// newController serves the operators' socket of a controller whose one attempt
// waits for a person, until it is decided.
func newController(env *testscript.Env) (socket string, err error) {
	dir, err := os.MkdirTemp("", "ao")
	if err != nil {
		return "", err
	}
	socket = filepath.Join(dir, "admin.sock")
	listener, err := uds.Listen(socket, uds.Options{})
	if err != nil {
		return "", err
	}
	entered := protocol.Timestamp(1_767_323_045_000_000)
	held := operator.Attempt{
		Key: "att.1", Reference: "att-7", Lane: 2, State: "terminal_held", Job: "job-1", Kind: "k.v1", Created: entered, HoldsLane: true,
		Executions: []operator.Execution{{Generation: "0123456789abcdef0123456789abcdef", Number: 4, Settlement: "consumed", Entered: &entered, Failure: "worker_lost"}},
		Waiting: &operator.Waiting{Step: "hold", Reason: "somebody else \x1b[31macted", Since: entered, Until: entered,
			Offers: []operator.Offer{{Action: "resolve", Lost: "The outcome is never published."}}},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/attempts", func(w http.ResponseWriter, _ *http.Request) {
		write(w, protocol.AppendCanonical(nil, operator.List{Attempts: []operator.Attempt{held}, Blocked: "the host \x1b[31mis draining"}))
	})
	mux.HandleFunc("GET /v1/attempts/{key}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("key") != held.Key {
			uds.WriteProblem(w, protocol.NewProblem(protocol.CodeNotFound, "no record with this key", "agentctl attempts list"))
			return
		}
		write(w, protocol.AppendCanonical(nil, held))
	})
	mux.HandleFunc("GET /v1/attempts/{key}/record", func(w http.ResponseWriter, _ *http.Request) { write(w, []byte(`{"v":1}`)) })
	mux.HandleFunc("POST /v1/attempts/{key}/resume", func(w http.ResponseWriter, _ *http.Request) {
		p := protocol.NewProblem(protocol.CodeBusy, "the attempt waits, and not for this decision", "agentctl attempts show")
		p.Code = operator.CodeNotOffered
		uds.WriteProblem(w, p)
	})
	mux.HandleFunc("POST /v1/attempts/{key}/resolve", func(w http.ResponseWriter, r *http.Request) {
		write(w, protocol.AppendCanonical(nil, operator.Decided{Key: r.PathValue("key"), Action: "resolve"}))
	})
	server := uds.NewServer(mux, uds.Limits{})
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	env.Defer(func() {
		if err := server.Close(); err != nil {
			panic(err)
		}
		<-done
		if err := os.RemoveAll(dir); err != nil {
			panic(err)
		}
	})
	return socket, nil
}
