package claims

import (
	"errors"
	"sync"
	"testing"
)

// I30: of many that race for one attempt exactly one gets it.
func TestOneOwner(t *testing.T) {
	var table Table
	var wg sync.WaitGroup
	won := make(chan *Claim, 32)
	barrier := make(chan struct{})
	for range 32 {
		wg.Go(func() {
			<-barrier
			c, err := table.Claim("k")
			switch {
			case err == nil:
				won <- c
			case !errors.Is(err, ErrKeyClaimed):
				t.Error(err)
			}
		})
	}
	close(barrier)
	wg.Wait()
	if len(won) != 1 || table.Len() != 1 {
		t.Fatalf("%d owners, %d claims", len(won), table.Len())
	}
	(<-won).Release()
	if c, err := table.Claim("k"); err != nil {
		t.Error("a released key:", err)
	} else {
		c.Release()
	}
	if table.Len() != 0 {
		t.Error("claims are left")
	}
}

// A reference already claimed leaves both claims as they are.
func TestReferenceClaimedLeavesBoth(t *testing.T) {
	var table Table
	claim := func(key string) *Claim {
		c, err := table.Claim(key)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := claim("a"), claim("b")
	if err := a.Bind("r"); err != nil {
		t.Fatal(err)
	}
	if err := b.Bind("r"); !errors.Is(err, ErrReferenceClaimed) {
		t.Errorf("got %v", err)
	}
	if a.Identity() != (Identity{"a", "r"}) || b.Identity() != (Identity{"b", ""}) || table.Len() != 2 {
		t.Errorf("claims are %v and %v", a.Identity(), b.Identity())
	}
	if err := a.Bind("r"); err != nil {
		t.Errorf("the same reference again: %v", err)
	}
	if err := a.Bind("s"); !errors.Is(err, ErrBound) {
		t.Errorf("another reference: %v", err)
	}
	if err := b.Bind("s"); err != nil {
		t.Errorf("a refused bind took the reference: %v", err)
	}
	a.Release()
	a.Release()
	if err := a.Bind("r"); !errors.Is(err, ErrReleased) {
		t.Errorf("a released claim: %v", err)
	}
	c := claim("a")
	if err := c.Bind("r"); err != nil {
		t.Errorf("a released reference: %v", err)
	}
	a.Release() // of the first holder: must not free the second one's claim
	if _, err := table.Claim("a"); !errors.Is(err, ErrKeyClaimed) {
		t.Errorf("got %v", err)
	}
}

// At a start all records are claimed or none.
func TestClaimAllOrNone(t *testing.T) {
	for name, row := range map[string]struct {
		list []Identity
		want error
	}{
		"key twice":         {[]Identity{{"a", ""}, {"b", "r"}, {"a", ""}}, ErrKeyClaimed},
		"reference twice":   {[]Identity{{"a", "r"}, {"b", "r"}}, ErrReferenceClaimed},
		"key held":          {[]Identity{{"a", ""}, {"held", ""}}, ErrKeyClaimed},
		"reference held":    {[]Identity{{"a", ""}, {"b", "ref"}}, ErrReferenceClaimed},
		"no references yet": {[]Identity{{"a", ""}, {"b", ""}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var table Table
			held, err := table.ClaimAll([]Identity{{"held", "ref"}})
			if err != nil {
				t.Fatal(err)
			}
			list, err := table.ClaimAll(row.list)
			if !errors.Is(err, row.want) {
				t.Fatalf("got %v", err)
			}
			if want := 1 + len(list); table.Len() != want || (row.want == nil) != (len(list) == len(row.list)) {
				t.Errorf("%d claims, %d taken", table.Len(), len(list))
			}
			if held[0].Identity() != (Identity{"held", "ref"}) {
				t.Error("the earlier claim changed")
			}
			if row.want == nil {
				return
			}
			if _, err := table.ClaimAll([]Identity{{"a", "x"}, {"b", "r"}}); err != nil {
				t.Errorf("a refused ClaimAll left something: %v", err)
			}
		})
	}
}
