// Command probe stands in the controller's place in its container, makes every
// attempt of package isolation and writes how each ended.
//
//	controller TARGETS RESULTS
//
// Both are files in its own directory: the JSON form of isolation.Targets, and
// that of the results. It decides nothing.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/quittance/quittance/integration/isolation"
)

func main() {
	if err := probe(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func probe(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("%d arguments, expected a file of targets and one for results: %q", len(args), args)
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("targets: %w", err)
	}
	var targets isolation.Targets
	if err := json.Unmarshal(text, &targets); err != nil {
		return fmt.Errorf("targets: %w", err)
	}
	results, err := json.Marshal(isolation.Run(targets))
	if err != nil {
		return err
	}
	// The name appears when the content is whole.
	if err := os.WriteFile(args[1]+".new", results, 0o644); err != nil {
		return err
	}
	return os.Rename(args[1]+".new", args[1])
}
