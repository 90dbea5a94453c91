package hostagent

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/logsink"
)

// Image is an image that the engine now has.
type Image = engine.Imported

// ImportImage loads an archive into the engine and returns what profiles pin.
func ImportImage(ctx context.Context, c Config, log hclog.Logger, file string) (images []Image, err error) {
	e, err := openEngine(ctx, c, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	return e.ImportImage(ctx, file)
}

// PullImage fetches an image from a registry into the engine.
func PullImage(ctx context.Context, c Config, log hclog.Logger, reference string) (image Image, err error) {
	e, err := openEngine(ctx, c, log)
	if err != nil {
		return Image{}, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	return e.PullImage(ctx, reference)
}

// LogSinkVerb is the hidden subcommand that shims start for each container.
const LogSinkVerb = "log-sink"

// LogSink is the whole log sink process; it returns its exit code.
func LogSink(argument string) int { return logsink.Main(argument) }

// Leftovers lists everything of the agent's on this machine, one a line: what
// lives on purpose too. Nothing is changed.
func Leftovers(ctx context.Context, c Config, log hclog.Logger) (found []string, err error) {
	groups, err := cgroup.Open(cgroup.Options{Root: c.WorkersCgroup()})
	if err != nil {
		return nil, err
	}
	leftovers, err := audit(ctx, c, groups, log)
	for _, l := range leftovers {
		found = append(found, l.String())
	}
	return found, err
}
