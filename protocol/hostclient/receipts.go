package hostclient

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// Leaf is one receipt as it was received.
type Leaf struct {
	Bytes   []byte // exact: what is hashed, stored and shown
	Hash    tlog.Hash
	Receipt protocol.Receipt // decoded from Bytes
}

// ReceiptsQuery says which receipts are wanted.
type ReceiptsQuery struct {
	After *protocol.Index // nil: from the first that can be served
	Limit int             // at most; 0 means [protocol.MaxReceiptsPage]
	Wait  time.Duration   // for the first one, at most [protocol.MaxWaitSeconds]
}

// Receipts reads a page of the log. The leaves are of this generation and
// contiguous, from After + 1 where that is given; an answer with a gap is
// refused as lost (I8). An empty page means that there is nothing newer yet.
// Nothing is verified against a signature here: see [Generation.Proof].
func (g *Generation) Receipts(ctx context.Context, q ReceiptsQuery) ([]Leaf, error) {
	r, err := g.request(http.MethodGet, "receipts").withWait(q.Wait)
	if err != nil {
		return nil, err
	}
	limit := q.Limit
	if limit == 0 {
		limit = protocol.MaxReceiptsPage
	}
	if limit < 0 || limit > protocol.MaxReceiptsPage {
		return nil, fmt.Errorf("%s: %w", r.op, &protocol.DecodeError{Field: "limit", Reason: fmt.Sprintf("must be from 1 to %d", protocol.MaxReceiptsPage)})
	}
	r = r.withQuery("limit", strconv.Itoa(limit))
	var next *protocol.Index
	if q.After != nil {
		r = r.withQuery("after", strconv.FormatInt(int64(*q.After), 10))
		first := *q.After + 1
		next = &first
	}
	var leaves []Leaf
	err = g.client.exchange(ctx, r, func(body io.Reader) error {
		leaves, err = readLeaves(body, g.id, next, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return leaves, nil
}

// Receipt reads one receipt by its index. It also reaches the receipts of
// allocations that are not released and whose indices lie below the first that
// [Generation.Receipts] can serve.
func (g *Generation) Receipt(ctx context.Context, index protocol.Index) (Leaf, error) {
	r := g.request(http.MethodGet, "receipts/"+strconv.FormatInt(int64(index), 10))
	var leaf Leaf
	err := g.client.exchange(ctx, r, func(body io.Reader) error {
		leaves, err := readLeaves(body, g.id, &index, 1)
		if err == nil && len(leaves) != 1 {
			err = errors.New("answer has no receipt")
		}
		if err == nil {
			leaf = leaves[0]
		}
		return err
	})
	return leaf, err
}

// readLeaves reads newline-terminated leaves, at most limit.
func readLeaves(body io.Reader, generation protocol.ID, next *protocol.Index, limit int) ([]Leaf, error) {
	reader := bufio.NewReaderSize(body, protocol.MaxReceiptBytes+1)
	var leaves []Leaf
	for {
		line, err := reader.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return leaves, nil
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("receipt is longer than %d bytes", protocol.MaxReceiptBytes)
		case errors.Is(err, io.EOF):
			return nil, errors.New("last receipt broke off")
		case err != nil:
			return nil, err
		case len(leaves) == limit:
			return nil, fmt.Errorf("answer has more than %d receipts", limit)
		}
		leaf, err := readLeaf(line[:len(line)-1], generation)
		if err != nil {
			return nil, err
		}
		if next != nil && leaf.Receipt.Index != *next {
			return nil, fmt.Errorf("receipt %d follows where %d is due", leaf.Receipt.Index, *next)
		}
		following := leaf.Receipt.Index + 1
		next = &following
		leaves = append(leaves, leaf)
	}
}

func readLeaf(line []byte, generation protocol.ID) (Leaf, error) {
	receipt, err := protocol.DecodeReceipt(line)
	if err != nil {
		return Leaf{}, fmt.Errorf("malformed receipt: %w", err)
	}
	if receipt.Generation != generation {
		return Leaf{}, fmt.Errorf("receipt %d is of another generation", receipt.Index)
	}
	exact := bytes.Clone(line)
	return Leaf{Bytes: exact, Hash: tlog.LeafHash(exact), Receipt: receipt}, nil
}
