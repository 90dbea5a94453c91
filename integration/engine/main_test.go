//go:build engine

package engine_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
)

var kit *agenttest.Kit

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	var err error
	if kit, err = agenttest.NewKit(""); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := kit.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	return m.Run()
}
