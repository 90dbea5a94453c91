package serve

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/receiptlog"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

func (h *Handler) health(*request) (answer, *protocol.Problem) {
	return answer{status: http.StatusOK, body: &protocol.Health{Status: "ok"}}, nil
}

// host puts together what the agent is and where its log stands.
func (h *Handler) host(r *request) (answer, *protocol.Problem) {
	id := h.cfg.Core.NewRequestID()
	reply, p := h.ask(r, id, core.GetHost{ID: id})
	if p != nil {
		return answer{}, p
	}
	v := reply.Body.(*core.HostView)
	checkpoint, err := h.cfg.Receipts.Checkpoint()
	if err != nil {
		return answer{}, h.internal("checkpoint", err)
	}
	first, head, _ := h.cfg.Receipts.Head()
	return answer{status: http.StatusOK, body: &protocol.Host{
		Generation: v.Generation, HostKey: v.HostKey, Versions: h.cfg.Versions, BootID: v.BootID, Engine: v.Engine, CgroupMode: v.CgroupMode,
		Frontiers: v.Frontiers, Index: protocol.IndexRange{First: first, Head: head}, Checkpoint: checkpoint.Text, Slots: v.Slots,
		Devices: v.Devices, Draining: v.Draining, Owner: v.Owner, OwnerHeard: v.OwnerHeard,
		WitnessRequired: v.WitnessRequired, Time: h.cfg.Now().Wall,
	}}, nil
}

// unserved translates what the receipt log cannot serve.
func (h *Handler) unserved(what string, err error) *protocol.Problem {
	if pruned, ok := errors.AsType[*receiptlog.PrunedError](err); ok {
		p := protocol.NewProblem(protocol.CodePruned, "that part of the history was released", "go on from first_index")
		p.FirstIndex = &pruned.First
		return p
	}
	if ahead, ok := errors.AsType[*receiptlog.AheadError](err); ok {
		return behind(ahead.Head, "the log ends before what was asked for")
	}
	return h.internal(what, err)
}

func behind(head protocol.Index, detail string) *protocol.Problem {
	p := protocol.NewProblem(protocol.CodeLedgerBehind, detail,
		"if a receipt above the head was ever received, the ledger was lost or restored: an operator follows the runbook ledger_behind")
	p.Head = &head
	return p
}

// receipts streams leaves exactly as they are stored.
func (h *Handler) receipts(r *request) (answer, *protocol.Problem) {
	first, head, changed := h.cfg.Receipts.Head()
	after := first - 1
	if text, ok := r.query["after"]; ok {
		var err error
		if after, err = parseIndex(text); err != nil {
			return answer{}, badRequest("after", err.Error())
		}
	}
	limit := protocol.MaxReceiptsPage
	if text, ok := r.query["limit"]; ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > protocol.MaxReceiptsPage || strconv.Itoa(n) != text {
			return answer{}, badRequest("limit", "must be a plain decimal from 1 to "+strconv.Itoa(protocol.MaxReceiptsPage))
		}
		limit = n
	}
	deadline, p := h.wait(r)
	if p != nil {
		return answer{}, p
	}
	if deadline != 0 && after >= head {
		timer := time.NewTimer(time.Duration(deadline-h.cfg.Now().BootMillis) * time.Millisecond)
		defer timer.Stop()
		for after == head {
			select {
			case <-changed:
				_, head, changed = h.cfg.Receipts.Head()
				continue
			case <-timer.C:
			case <-r.http.Context().Done():
			}
			break
		}
	}
	leaves, err := h.cfg.Receipts.Read(after, limit, protocol.MaxAnswerBytes)
	if err != nil {
		return answer{}, h.unserved("receipts", err)
	}
	return answer{status: http.StatusOK, lines: append([][]byte{}, leaves...)}, nil
}

// receipt gives one leaf. Unlike receipts it reaches below the first index: the
// receipts of allocations that are not released stay readable one by one.
func (h *Handler) receipt(r *request) (answer, *protocol.Problem) {
	leaf, err := h.cfg.Receipts.Leaf(r.index)
	if err != nil {
		return answer{}, h.unserved("receipt", err)
	}
	return answer{status: http.StatusOK, lines: [][]byte{leaf}}, nil
}

func (h *Handler) proof(r *request) (answer, *protocol.Problem) {
	proof, err := h.cfg.Receipts.Proof(r.index)
	if err != nil {
		return answer{}, h.unserved("proof", err)
	}
	return answer{status: http.StatusOK, text: proof.Format()}, nil
}

func (h *Handler) checkpoint(*request) (answer, *protocol.Problem) {
	c, err := h.cfg.Receipts.Checkpoint()
	if err != nil {
		return answer{}, h.unserved("checkpoint", err)
	}
	return answer{status: http.StatusOK, text: c.Text}, nil
}

func (h *Handler) consistency(r *request) (answer, *protocol.Problem) {
	from, err := parseIndex(r.query["from"])
	if err != nil {
		return answer{}, badRequest("from", errIndex.Error())
	}
	c, hashes, err := h.cfg.Receipts.Consistency(int64(from))
	if err != nil {
		return answer{}, h.unserved("consistency", err)
	}
	return answer{status: http.StatusOK, body: &protocol.ConsistencyAnswer{
		From: int64(from), Checkpoint: c.Text, Consistency: tlog.FormatHashes(hashes),
	}}, nil
}

// witness compares what the controller holds with the log, and tells core how
// that came out (I9).
func (h *Handler) witness(r *request) (answer, *protocol.Problem) {
	var body protocol.WitnessRequest
	if p := decode(r, &body); p != nil {
		return answer{}, p
	}
	var size int64
	var ahead string
	if body.Checkpoint != nil {
		c, err := tlog.ParseCheckpoint(*body.Checkpoint, h.cfg.HostKey)
		if err != nil {
			return answer{}, badRequest("/checkpoint", "is not a checkpoint that this generation's host key signed")
		}
		size = c.Tree.Size
		tree, err := h.cfg.Receipts.TreeAt(size)
		if _, isAhead := errors.AsType[*receiptlog.AheadError](err); isAhead {
			ahead = "the controller holds a signed checkpoint that is ahead of the ledger"
		} else if err != nil {
			return answer{}, h.unserved("witness", err)
		} else if tree.Root != c.Tree.Root {
			ahead = "the controller holds a signed checkpoint of another history"
		}
	}
	if body.Highest != nil && ahead == "" {
		var p *protocol.Problem
		if ahead, p = h.compareHighest(*body.Highest); p != nil {
			return answer{}, p
		}
	}
	id := h.cfg.Core.NewRequestID()
	if _, p := h.ask(r, id, core.Witness{ID: id, Caller: r.caller, Size: size, Behind: ahead}); p != nil {
		return answer{}, p
	}
	c, hashes, err := h.cfg.Receipts.Consistency(size)
	if err != nil {
		return answer{}, h.unserved("witness", err)
	}
	return answer{status: http.StatusOK, body: &protocol.WitnessAnswer{
		Disposition: protocol.Done, Checkpoint: c.Text, Consistency: tlog.FormatHashes(hashes),
	}}, nil
}

// compareHighest checks the highest receipt that the controller holds. One that
// is already pruned is attested by the checkpoint that allowed the pruning.
func (h *Handler) compareHighest(seen protocol.Seen) (ahead string, p *protocol.Problem) {
	ours, err := h.cfg.Receipts.LeafHash(seen.Index)
	if _, pruned := errors.AsType[*receiptlog.PrunedError](err); pruned {
		return "", nil
	}
	if _, isAhead := errors.AsType[*receiptlog.AheadError](err); isAhead {
		return "the controller holds receipt " + strconv.FormatInt(int64(seen.Index), 10) + ", which the ledger does not have", nil
	}
	if err != nil {
		return "", h.internal("witness", err)
	}
	if tlog.DigestOf(ours) != seen.LeafHash {
		return "the controller holds another receipt " + strconv.FormatInt(int64(seen.Index), 10) + " than the ledger", nil
	}
	return "", nil
}
