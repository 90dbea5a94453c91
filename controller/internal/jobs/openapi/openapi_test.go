package openapi

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/quittance/quittance/controller/api"
)

var update = flag.Bool("update", false, "write the document of the current version anew, before it is released")

// The kept document is the contract; a difference is a change of it.
func TestDocumentIsTheKeptOne(t *testing.T) {
	got := Document()
	if !bytes.Equal(got, Document()) {
		t.Fatal("the document is not deterministic")
	}
	if *update {
		if err := os.WriteFile("v1.json", got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile("v1.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, kept) {
		t.Fatal("the types describe another API than v1.json; before a release run the test with -update and read the difference, after it make a new version")
	}
}

func TestEveryRouteIsDescribedOnce(t *testing.T) {
	described := map[string]int{}
	for _, op := range Operations() {
		described[op.Route.Name]++
		if (op.Request == nil) != (op.Route.MaxRequest == 0) {
			t.Errorf("%s: body and ceiling disagree", op.Route.Name)
		}
	}
	for _, route := range api.Routes() {
		if described[route.Name] != 1 {
			t.Errorf("%s is described %d times", route.Name, described[route.Name])
		}
		delete(described, route.Name)
	}
	if len(described) != 0 {
		t.Errorf("described and not there: %v", described)
	}
}
