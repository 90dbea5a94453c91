package main

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/quittance/quittance/integration/isolation"
	"github.com/quittance/quittance/integration/vm/refusals"
)

// I1: the list beside the units is that of the attempts: none of them is missing
// there, none was dropped here, and each answer is one that it must have.
func TestListOfRefusals(t *testing.T) {
	text, err := os.ReadFile("../../../packaging/systemd/refused.txt")
	if err != nil {
		t.Fatal(err)
	}
	listed, err := refusals.ParseList(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != refusals.Format(listed) {
		t.Error("packaging/systemd/refused.txt is not as make vm writes it")
	}
	wanted := map[string][]string{}
	expect := func(who, what string, answers []string) {
		name := who + ": " + what
		if wanted[name] != nil {
			t.Errorf("%s: there are two attempts of this name", name)
		}
		wanted[name] = answers
	}
	for _, a := range isolation.Forbidden() {
		expect(contained, a.Name, a.Want)
	}
	for _, a := range attempts(aims{}) {
		if a.wanted != allowed {
			expect(a.user, a.name, []string{a.wanted})
		}
	}
	for _, r := range listed {
		name := fmt.Sprintf("%s: %s", r.Who, r.What)
		if !slices.Contains(wanted[name], r.Error) {
			t.Errorf("%s: listed with %q, expected one of %q", name, r.Error, wanted[name])
		}
		delete(wanted, name)
	}
	for name := range wanted {
		t.Errorf("%s: in no line of packaging/systemd/refused.txt", name)
	}
}
