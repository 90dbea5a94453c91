package command

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain makes agentctl's real main a command of the scripts.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"agentctl": func() { os.Exit(Main(os.Args[1:])) }})
}

// TestScripts runs the real command line against an agent and a job service
// that answer on real sockets from a recorded history.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			whole, err := newAgent(env, "whole", 0)
			if err != nil {
				return err
			}
			pruned, err := newAgent(env, "pruned", 8)
			if err != nil {
				return err
			}
			admin, err := newController(env)
			if err != nil {
				return err
			}
			env.Setenv("QUITTANCE_ADMIN_SOCKET", admin)
			env.Setenv("QUITTANCE_SOCKET", whole)
			env.Setenv("PRUNED", pruned)
			service, err := newService(env)
			if err != nil {
				return err
			}
			env.Setenv("QUITTANCE_API", service)
			env.Setenv("QUITTANCE_TOKEN_FILE", env.Getenv("WORK")+"/token")
			return os.WriteFile(env.Getenv("WORK")+"/token", []byte(testToken+"\n"), 0o600)
		},
	})
}
