// Package claims says who may act on an attempt: one holder by provider attempt
// key and, once the attempt is admitted, by reference too (I30). All lanes and
// recovery of a process share one [Table]; processes are kept apart by the
// store's lock.
//
// It owns the table and nothing else: it never waits, reads no store and knows
// no state of an attempt.
package claims

import (
	"errors"
	"sync"
)

// Errors of a claim. Each leaves every existing claim as it is.
var (
	// ErrKeyClaimed: somebody acts on the attempt with this key.
	ErrKeyClaimed = errors.New("the attempt key is claimed already")
	// ErrReferenceClaimed: somebody acts on the attempt with this reference.
	// Two records then claim one attempt: hold the lane and report it.
	ErrReferenceClaimed = errors.New("the attempt reference is claimed already")
	// ErrBound: this claim has another reference already.
	ErrBound = errors.New("the claim is bound to another reference")
	// ErrReleased: the claim was given back.
	ErrReleased = errors.New("the claim was released")
)

// Identity names one attempt.
type Identity struct {
	Key       string
	Reference string // "" before admission
}

// Table holds the claims of one process. The zero value is empty and ready;
// its methods may be called from any goroutine.
type Table struct {
	mu         sync.Mutex
	keys       map[string]*Claim // guarded by mu
	references map[string]*Claim // guarded by mu
}

// Claim is the right to act on one attempt until Release.
type Claim struct {
	table     *Table
	key       string
	reference string // guarded by table.mu
	released  bool   // guarded by table.mu
}

// Claim takes the attempt with this key, or returns [ErrKeyClaimed].
func (t *Table) Claim(key string) (*Claim, error) {
	list, err := t.ClaimAll([]Identity{{Key: key}})
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// ClaimAll takes all these attempts or none, in their order. Two identities
// with one key or one reference are refused like a claim of another holder.
func (t *Table) ClaimAll(list []Identity) ([]*Claim, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys == nil {
		t.keys, t.references = make(map[string]*Claim), make(map[string]*Claim)
	}
	var taken []*Claim
	for _, id := range list {
		err := error(nil)
		if _, ok := t.keys[id.Key]; ok {
			err = ErrKeyClaimed
		} else if _, ok := t.references[id.Reference]; ok && id.Reference != "" {
			err = ErrReferenceClaimed
		}
		if err != nil {
			for _, c := range taken {
				c.drop()
			}
			return nil, err
		}
		c := &Claim{table: t, key: id.Key, reference: id.Reference}
		t.keys[id.Key] = c
		if id.Reference != "" {
			t.references[id.Reference] = c
		}
		taken = append(taken, c)
	}
	return taken, nil
}

// Bind adds the reference of the admitted attempt. Binding the same reference
// again changes nothing. [ErrReferenceClaimed] leaves both claims as they are.
func (c *Claim) Bind(reference string) error {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	switch {
	case c.released:
		return ErrReleased
	case c.reference == reference:
		return nil
	case c.reference != "":
		return ErrBound
	}
	if _, ok := c.table.references[reference]; ok {
		return ErrReferenceClaimed
	}
	c.reference = reference
	c.table.references[reference] = c
	return nil
}

// Identity is what the claim covers now.
func (c *Claim) Identity() Identity {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	return Identity{c.key, c.reference}
}

// Release gives the attempt back. A second call does nothing.
func (c *Claim) Release() {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	c.drop()
}

// drop removes the claim; the caller holds table.mu.
func (c *Claim) drop() {
	if c.released {
		return
	}
	c.released = true
	delete(c.table.keys, c.key)
	if c.reference != "" {
		delete(c.table.references, c.reference)
	}
}

// Len is the number of claims held.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.keys)
}
