package controller

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api/operator"
	"github.com/quittance/quittance/controller/internal/console"
)

// openConsole listens on the operators' socket.
func openConsole(c Config, w *work, drain func(), log hclog.Logger) (*console.Console, error) {
	runtime, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":")
	return console.Listen(c.AdminPath(runtime), console.Config{Store: w.store, Desk: w.desk, Drain: drain, Blocked: func() string { return w.service.Snapshot().Blocked }, Log: log.Named("console")})
}

// Drain makes the running controller of a configuration take nothing new. It
// returns how many attempts are not resolved yet.
func Drain(ctx context.Context, c Config) (running int, err error) {
	path := c.AdminPath("")
	if c.AdminSocket == "" {
		// The packaged unit's, unless this controller runs without it.
		if _, err := os.Stat(operator.DefaultSocket); err == nil || !errors.Is(err, fs.ErrNotExist) {
			path = operator.DefaultSocket
		}
	}
	answer, err := operator.New(path).Drain(ctx)
	return answer.Running, err
}
