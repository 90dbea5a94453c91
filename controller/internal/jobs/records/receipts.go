package records

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// hostReceipt is one attached receipt, read and checked.
type hostReceipt struct {
	receipt protocol.Receipt
	leaf    []byte
	proof   string
	trust   api.Trust
}

// AttachReceipts adds signed host receipts to an attempt, before or after its
// end. A receipt is shown as verified only where an operator registered the key
// that proves it.
func (s *Store) AttachReceipts(ctx context.Context, provider string, request *api.HostReceipts) (api.HostReceiptsAnswer, error) {
	var answer api.HostReceiptsAnswer
	receipts, err := readReceipts(request)
	if err != nil {
		return answer, err
	}
	err = s.write(ctx, func(t *transaction) error {
		a, err := t.attempt(`attempt = ? AND provider = ?`, request.Attempt, provider)
		if err != nil {
			return err
		}
		if a == nil {
			return Refuse(api.CodeNotFound)
		}
		if field := foreign(receipts, a.key); field != "" {
			return refuseField(api.CodeReceiptConflict, field)
		}
		registered, err := t.registered(request.Key)
		if err != nil {
			return err
		}
		answer = api.HostReceiptsAnswer{Attempt: a.id}
		for i := range receipts {
			added, err := t.attach(a, request.Key, registered, &receipts[i], pointer("/receipts", i))
			if err != nil {
				return err
			}
			if added {
				answer.Added++
			}
		}
		if _, err := t.row([]any{&answer.Total, &answer.Verified},
			`SELECT COUNT(*), COALESCE(SUM(CASE WHEN trust = ? THEN 1 ELSE 0 END), 0) FROM host_receipts WHERE attempt = ?`,
			api.TrustVerified, a.id); err != nil {
			return err
		}
		if answer.Total > api.MaxHostReceipts {
			return refuseField(api.CodeReceiptBounds, "/receipts")
		}
		if answer.Added == 0 {
			return nil
		}
		j, err := t.job(a.job)
		if err != nil {
			return err
		}
		if err := t.addEvent(j, event{kind: api.EventReceipts, attempt: a}); err != nil {
			return err
		}
		return t.saveJob(j)
	})
	return answer, err
}

// readReceipts decodes the leaves and tries every proof under the key that came
// with them. Under no key at all nothing is proved and nothing disproved.
func readReceipts(request *api.HostReceipts) ([]hostReceipt, error) {
	key, err := tlog.ParsePublicKey(request.Key)
	if err != nil {
		return nil, malformed("/key", "is not a host's verifier key")
	}
	receipts := make([]hostReceipt, len(request.Receipts))
	for i, sent := range request.Receipts {
		receipt, err := protocol.DecodeReceipt(sent.Leaf)
		if err != nil {
			return nil, malformed(pointer("/receipts", i)+"/leaf", "is not a receipt in canonical form")
		}
		trust := api.TrustAnnounced
		if proves(key, sent.Leaf, sent.Proof, &receipt) != nil {
			trust = api.TrustInvalid
		}
		receipts[i] = hostReceipt{receipt: receipt, leaf: sent.Leaf, proof: sent.Proof, trust: trust}
	}
	return receipts, nil
}

// proves checks that the proof shows exactly this receipt, at its own index of
// its own generation, under the key.
func proves(key *tlog.PublicKey, leaf []byte, text string, receipt *protocol.Receipt) error {
	if key.Generation() != receipt.Generation {
		return fmt.Errorf("records: the key is of another generation")
	}
	proof, err := tlog.ParseProof(text)
	if err != nil {
		return err
	}
	if proof.Index != receipt.Index {
		return fmt.Errorf("records: the proof is of another index")
	}
	_, err = proof.Verify(leaf, key)
	return err
}

func malformed(field, reason string) *api.Problem {
	problem := api.NewProblem(api.CodeBadRequest, field+" "+reason+".", "Correct the request; nothing was changed.")
	problem.Field = field
	return problem
}

// foreign finds a receipt that says itself that it belongs to another attempt:
// the accepted receipt names the attempt key as its purpose (I4).
func foreign(receipts []hostReceipt, key string) string {
	for i := range receipts {
		if receipts[i].receipt.Kind != protocol.KindAccepted {
			continue
		}
		body, err := protocol.BodyOf[protocol.AcceptedBody](receipts[i].receipt)
		if err != nil || body.Purpose != key {
			return pointer("/receipts", i) + "/leaf"
		}
	}
	return ""
}

func (t *transaction) registered(keyText string) (bool, error) {
	var one int64
	return t.row([]any{&one}, `SELECT 1 FROM host_keys WHERE key_text = ?`, strings.TrimSpace(keyText))
}

func (t *transaction) attach(a *attempt, keyText string, registered bool, r *hostReceipt, at string) (added bool, err error) {
	var known []byte
	found, err := t.row([]any{&known}, `SELECT leaf FROM host_receipts WHERE attempt = ? AND generation = ? AND idx = ?`,
		a.id, r.receipt.Generation, r.receipt.Index)
	if err != nil {
		return false, err
	}
	if found {
		if !bytes.Equal(known, r.leaf) {
			return false, refuseField(api.CodeReceiptConflict, at+"/leaf")
		}
		return false, nil
	}
	trust := r.trust
	if registered && trust == api.TrustAnnounced {
		trust = api.TrustVerified
	}
	var number protocol.Number
	if r.receipt.Number != nil {
		number = *r.receipt.Number
	}
	return true, t.exec(`INSERT INTO host_receipts (attempt, generation, idx, kind, number, key_text, trust, leaf, proof)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, a.id, r.receipt.Generation, int64(r.receipt.Index), string(r.receipt.Kind), int64(number),
		strings.TrimSpace(keyText), trust, r.leaf, r.proof)
}

// AddHostKey registers a host's verifier key, which its operator brought by his
// own way. Receipts that were only announced under it and whose proofs hold
// become verified. It returns how many.
func (s *Store) AddHostKey(ctx context.Context, text string) (int, error) {
	key, err := tlog.ParsePublicKey(text)
	if err != nil {
		return 0, fmt.Errorf("records: host key: %w", err)
	}
	var verified int64
	err = s.write(ctx, func(t *transaction) error {
		if err := t.exec(`INSERT INTO host_keys (key_text, generation, created) VALUES (?, ?, ?) ON CONFLICT (key_text) DO NOTHING`,
			key.String(), key.Generation(), t.now); err != nil {
			return err
		}
		// The proofs were checked under this very key when they came.
		verified, err = t.Exec(ctx, `UPDATE host_receipts SET trust = ? WHERE key_text = ? AND trust = ?`,
			api.TrustVerified, key.String(), api.TrustAnnounced)
		return err
	})
	return int(verified), err
}

// Receipts lists a job's host receipts.
func (s *Store) Receipts(ctx context.Context, workspace, id string) (api.JobReceipts, error) {
	answer := api.JobReceipts{Job: id}
	err := s.read(ctx, func(t *transaction) error {
		j, err := t.own(workspace, id)
		if err != nil {
			return err
		}
		answer.Receipts, err = t.receipts(j.id)
		return err
	})
	return answer, err
}

func (t *transaction) receipts(job string) ([]api.JobReceipt, error) {
	receipts := []api.JobReceipt{}
	err := t.rows(func(scan func(...any) error) error {
		var r api.JobReceipt
		var leaf []byte
		if err := scan(&r.Attempt, &r.Generation, &r.Index, &r.Kind, &r.Number, &r.Key, &r.Trust, &leaf, &r.Proof); err != nil {
			return err
		}
		r.Leaf = leaf
		receipts = append(receipts, r)
		return nil
	}, `SELECT r.attempt, r.generation, r.idx, r.kind, r.number, r.key_text, r.trust, r.leaf, r.proof
		FROM host_receipts r JOIN attempts a ON a.attempt = r.attempt WHERE a.job = ?
		ORDER BY a.position, r.generation, r.idx`, job)
	return receipts, err
}

// Provenance reads what produced a job's outcomes.
func (s *Store) Provenance(ctx context.Context, workspace, id string) (api.JobProvenance, error) {
	var answer api.JobProvenance
	err := s.read(ctx, func(t *transaction) error {
		j, err := t.own(workspace, id)
		if err != nil {
			return err
		}
		answer, err = t.provenance(j)
		return err
	})
	return answer, err
}
