package command

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/quittance/quittance/cmd/agentctl/internal/sample"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
	"github.com/quittance/quittance/protocol/uds"
)

// recordedAgent answers the private socket from the sample history. The real
// agent is asked in the end-to-end lane; here every answer is known to the
// byte.
type recordedAgent struct {
	log   *sample.Log
	first int // receipts below it are pruned
	list  []protocol.Allocation
	asked atomic.Int64 // long polls at the end of the history

	draining atomic.Bool
	drains   atomic.Int64 // PUT drain so far
}

// newAgent serves a history pruned below first on a socket of its own and
// writes its public key to $WORK/NAME.pub.
func newAgent(env *testscript.Env, name string, first int) (socket string, err error) {
	dir, err := os.MkdirTemp("", "ac")
	if err != nil {
		return "", err
	}
	agent := &recordedAgent{log: sample.History(), first: first}
	agent.list = agent.allocations()
	key := filepath.Join(env.Getenv("WORK"), name+".pub")
	if err := os.WriteFile(key, []byte("# the host's key\n"+agent.log.Signer.PublicKey()+"\n"), 0o644); err != nil {
		return "", err
	}
	socket = filepath.Join(dir, "agent.sock")
	listener, err := uds.Listen(socket, uds.Options{})
	if err != nil {
		return "", err
	}
	server := uds.NewServer(agent.handler(), uds.Limits{})
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

func (a *recordedAgent) handler() http.Handler {
	mux := http.NewServeMux()
	in := "/v1/" + string(sample.Generation) + "/"
	answer := func(pattern string, make func(r *http.Request) (any, *protocol.Problem)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, problem := make(r)
			if problem != nil {
				uds.WriteProblem(w, problem)
				return
			}
			w.Header().Set("Content-Type", protocol.ContentJSON)
			write(w, protocol.AppendCanonical(nil, body))
		})
	}
	answer("GET /v1/host", func(*http.Request) (any, *protocol.Problem) { return a.host(), nil })
	answer("GET "+in+"profiles", func(*http.Request) (any, *protocol.Problem) { return profileList(), nil })
	answer("GET "+in+"allocations", func(*http.Request) (any, *protocol.Problem) {
		return protocol.AllocationList{Allocations: a.list}, nil
	})
	answer("GET "+in+"allocations/{n}", func(r *http.Request) (any, *protocol.Problem) { return a.one(r) })
	answer("GET "+in+"allocations/{n}/log", func(r *http.Request) (any, *protocol.Problem) {
		x, problem := a.one(r)
		return protocol.Log{
			Number: x.Number, Head: []byte("listening\nfirst \x1b[31mred\n"), Tail: []byte("…\nkilled\n"),
			DroppedBytes: 1000, TotalBytes: 1040,
		}, problem
	})
	answer("PUT "+in+"allocations/{n}/retirement", func(r *http.Request) (any, *protocol.Problem) { return a.retire(r) })
	answer("PUT "+in+"drain", func(*http.Request) (any, *protocol.Problem) { return a.drain(true), nil })
	answer("DELETE "+in+"drain", func(*http.Request) (any, *protocol.Problem) { return a.drain(false), nil })
	answer("PUT "+in+"owner", func(r *http.Request) (any, *protocol.Problem) { return setOwner(r) })
	mux.HandleFunc("GET "+in+"receipts", a.receipts)
	mux.HandleFunc("GET "+in+"receipts/{index}/proof", func(w http.ResponseWriter, r *http.Request) {
		index, err := strconv.Atoi(r.PathValue("index"))
		if err != nil || index < a.first || index >= len(a.log.Leaves) {
			uds.WriteProblem(w, protocol.NewProblem(protocol.CodePruned, "pruned", "read from first_index"))
			return
		}
		write(w, []byte(a.log.Proof(protocol.Index(index), int64(len(a.log.Leaves))).Format()))
	})
	mux.HandleFunc("GET "+in+"checkpoint", func(w http.ResponseWriter, _ *http.Request) {
		write(w, []byte(a.log.Checkpoint(int64(len(a.log.Leaves)))))
	})
	return mux
}

func write(w http.ResponseWriter, data []byte) {
	if _, err := w.Write(data); err != nil {
		panic(err)
	}
}

func (a *recordedAgent) host() protocol.Host {
	return protocol.Host{
		Generation: sample.Generation, HostKey: a.log.Signer.PublicKey(),
		Versions: protocol.Versions{Agent: "1.2.3", Protocol: []int{1}}, BootID: sample.Boot,
		Engine: protocol.Engine{Available: true, Version: "1.6.20"}, CgroupMode: protocol.CgroupV1,
		Frontiers:  protocol.Frontiers{Accepted: 3, Released: 1},
		Index:      protocol.IndexRange{First: protocol.Index(a.first), Head: protocol.Index(len(a.log.Leaves) - 1)},
		Checkpoint: a.log.Checkpoint(int64(len(a.log.Leaves))),
		Slots:      protocol.Slots{Max: 8, Used: 1, Stuck: 0, MaxUnreleased: 1000, Unreleased: 1},
		Devices:    append(cards(0), cards(1)...), Owner: sample.P(sample.Owner),
		OwnerHeard: sample.P(protocol.Timestamp(1_796_000_100_000_000)), Time: 1_796_000_103_000_000,
	}
}

// cards are one card under its two names.
func cards(i int) []protocol.Device {
	nodes := []string{fmt.Sprintf("/dev/dri/renderD%d", 128+i), fmt.Sprintf("/dev/nvidia%d", i)}
	return []protocol.Device{
		{Name: fmt.Sprintf("nvidia.com/gpu=%d", i), Nodes: nodes}, {Name: fmt.Sprintf("nvidia.com/gpu=GPU-%04d", i), Nodes: nodes},
	}
}

func profileList() protocol.ProfileList {
	ready := protocol.ReadyRule{HTTP: "/health", Status: 200, TimeoutMillis: 30000, IntervalMillis: 20}
	limits := protocol.Limits{MemoryBytes: 384 << 20, CPUMillis: 1500, PIDs: 64}
	return protocol.ProfileList{Profiles: []protocol.ProfileInfo{
		{Name: "ocr", Digest: sample.Digest, Available: true, ImageDigest: sample.Digest, Ready: ready, Limits: limits, Devices: []string{}},
		{Name: "langid", Available: false, Reason: "image has no digest: hostagent image import FILE prints it", Ready: ready, Devices: []string{}},
	}}
}

func (a *recordedAgent) allocations() []protocol.Allocation {
	purpose := func(n protocol.Number) string { return "attempt-" + n.String() }
	killed := protocol.OOM{
		Verdict: protocol.VerdictKilled, Scope: sample.P(protocol.ScopeContainer), Source: protocol.CountersFromV1,
		Counters: protocol.Counters{OOMKill: sample.P(int64(1)), FailCnt: sample.P(int64(12))},
	}
	entries := func(n protocol.Number) []protocol.ReceiptEntry {
		var list []protocol.ReceiptEntry
		for _, leaf := range a.log.Leaves {
			r, err := protocol.DecodeReceipt(leaf)
			if err != nil {
				panic(err)
			}
			if r.Number != nil && *r.Number == n {
				list = append(list, protocol.ReceiptEntry{Index: r.Index, Kind: r.Kind, LeafHash: tlog.LeafDigest(leaf), At: r.At})
			}
		}
		return list
	}
	return []protocol.Allocation{
		{
			Number: 2, State: protocol.StateConsumed, Owner: sample.Owner, Purpose: purpose(2), Profile: sample.P("ocr-small"),
			ProfileDigest: sample.P(sample.Digest), Limits: &protocol.Limits{MemoryBytes: 64 << 20, CPUMillis: 1000, PIDs: 64},
			Devices: []protocol.Device{}, Container: sample.P(sample.Container(2, "ocr-small")), Reason: sample.P(protocol.ReasonRequested),
			Exit: &protocol.Exit{Source: protocol.ExitFromEngine, Code: sample.P(int64(137)), Signal: sample.P(int64(9))},
			OOM:  &killed, Peaks: &protocol.Peaks{MemoryBytes: sample.P(int64(64 << 20)), CPUMicros: sample.P(int64(1_500_000))},
			LogSink: sample.P(protocol.LogSinkOK), Receipts: entries(2),
		},
		{
			Number: 3, State: protocol.StateStarted, Owner: sample.Owner, Purpose: purpose(3), Profile: sample.P("ocr"),
			ProfileDigest: sample.P(sample.Digest), Limits: &protocol.Limits{MemoryBytes: 384 << 20, CPUMillis: 1000, PIDs: 64},
			Devices: cards(0), Container: sample.P(sample.Container(3, "ocr")),
			OOM:      &protocol.OOM{Verdict: protocol.VerdictNotKilled, Source: protocol.CountersFromV1},
			Peaks:    &protocol.Peaks{MemoryBytes: sample.P(int64(40 << 20))},
			ReadAt:   sample.P(protocol.Timestamp(1_796_000_103_000_000)),
			Channels: 1, Step: "running", Receipts: entries(3),
		},
	}
}

func (a *recordedAgent) one(r *http.Request) (protocol.Allocation, *protocol.Problem) {
	n, err := protocol.ParseNumber(r.PathValue("n"))
	if err != nil {
		return protocol.Allocation{}, protocol.NewProblem(protocol.CodeBadNumber, err.Error(), "correct the number")
	}
	if n == 1 {
		return protocol.Allocation{}, protocol.NewProblem(protocol.CodeReleased, "number 1 is released", "its history is gone")
	}
	for _, x := range a.list {
		if x.Number == n {
			return x, nil
		}
	}
	return protocol.Allocation{}, protocol.NewProblem(protocol.CodeNotFound, fmt.Sprintf("number %s was never accepted", n), "look at the frontier")
}

// retire answers as for a fresh retirement that ends within the wait.
func (a *recordedAgent) retire(r *http.Request) (any, *protocol.Problem) {
	x, problem := a.one(r)
	if problem != nil {
		return nil, problem
	}
	body := make([]byte, r.ContentLength)
	if _, err := r.Body.Read(body); err != nil && err.Error() != "EOF" {
		panic(err)
	}
	var request protocol.RetireRequest
	if err := protocol.DecodeStrict(body, protocol.MaxBodyBytes, &request); err != nil {
		return nil, protocol.NewProblem(protocol.CodeBadRequest, err.Error(), "correct it")
	}
	if request.Purpose != x.Purpose {
		return nil, protocol.NewProblem(protocol.CodeNumberConflict, "another purpose", "read the number")
	}
	answer := protocol.EffectAnswer{Disposition: protocol.Done, Allocation: x}
	if strings.HasPrefix(r.URL.Query().Get("wait"), "1") {
		return answer, nil // still under way after 1s
	}
	leaf := protocol.EncodeReceipt(sample.Generation, 99, protocol.KindRetired, x.Number, 1_796_000_200_000_000, protocol.RetiredBody{
		Dispatched: true, Reason: protocol.ReasonOperator, RequestedBy: sample.P("operator"), Note: request.Note,
		OOM: *x.OOM, Durations: protocol.RetireTook{RemoveMillis: 71},
	})
	answer.Receipt, answer.LeafHash = leaf, sample.P(tlog.LeafDigest(leaf))
	return answer, nil
}

// drain answers as if one allocation ended with every second request.
func (a *recordedAgent) drain(on bool) protocol.DrainAnswer {
	answer := protocol.DrainAnswer{Disposition: protocol.Done, Draining: on, Active: 1}
	if on {
		answer.Active = max(0, 2-int(a.drains.Add(1))/2)
	}
	if a.draining.Swap(on) != on {
		answer.Receipt = []byte(`{}`)
	}
	return answer
}

func setOwner(r *http.Request) (any, *protocol.Problem) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	var request protocol.OwnerRequest
	if err := protocol.DecodeStrict(body, protocol.MaxBodyBytes, &request); err != nil {
		return nil, protocol.NewProblem(protocol.CodeBadRequest, err.Error(), "correct it")
	}
	answer := protocol.OwnerAnswer{Disposition: protocol.Done, Owner: request.Owner}
	if request.Owner != sample.Owner {
		answer.Receipt = []byte(`{}`)
	}
	return answer, nil
}

func (a *recordedAgent) receipts(w http.ResponseWriter, r *http.Request) {
	next := a.first
	if text := r.URL.Query().Get("after"); text != "" {
		after, err := strconv.Atoi(text)
		if err != nil {
			panic(err)
		}
		next = after + 1
	}
	switch {
	case next < a.first:
		problem := protocol.NewProblem(protocol.CodePruned, "receipts below are pruned", "read from first_index")
		problem.FirstIndex = sample.P(protocol.Index(a.first))
		uds.WriteProblem(w, problem)
		return
	case next > len(a.log.Leaves):
		uds.WriteProblem(w, protocol.NewProblem(protocol.CodeLedgerBehind, "the log does not go so far", "tell an operator"))
		return
	}
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		panic(err)
	}
	if next == len(a.log.Leaves) && r.URL.Query().Has("wait") {
		// A recorded history gets no new receipts. First the agent does not know,
		// as while it stops; then its generation is another one, which ends
		// whoever follows.
		code, detail := protocol.CodeUnavailable, "the agent is stopping"
		if a.asked.Add(1) > 1 {
			code, detail = protocol.CodeOtherGeneration, "the ledger was abandoned"
		}
		uds.WriteProblem(w, protocol.NewProblem(code, detail, "ask again"))
		return
	}
	w.Header().Set("Content-Type", protocol.ContentReceipts)
	for _, leaf := range a.log.Leaves[next:min(next+limit, len(a.log.Leaves))] {
		write(w, append(append([]byte{}, leaf...), '\n'))
	}
}
