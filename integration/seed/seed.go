// Package seed fixes what property tests draw, so that a run of the tests never
// fails where the one before it, of the same code, passed. A test package imports
// it for that alone.
//
// It owns the choice of the seed: QUITTANCE_SEED, a number from 1, draws other
// cases, and the long form of the tests does. It must not know any property.
package seed

import (
	"flag"
	"fmt"
	"os"
	"strconv"

	_ "pgregory.net/rapid" // its flag is set below
)

// usual is the seed without QUITTANCE_SEED.
const usual = 1

func init() {
	seed := uint64(usual)
	if text := os.Getenv("QUITTANCE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil || seed == 0 {
			fmt.Fprintf(os.Stderr, "QUITTANCE_SEED is %q, not a number from 1\n", text)
			os.Exit(2)
		}
	}
	if err := flag.Set("rapid.seed", strconv.FormatUint(seed, 10)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
