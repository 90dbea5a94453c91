package controller

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/metrics"
)

// Options are what Run needs beside the configuration.
type Options struct {
	Version string // of the program
	Logger  hclog.Logger
	// Figures takes the process's metrics; nil for none.
	Figures prometheus.Registerer
	figures *metrics.Figures // registered there, set by Run
	// Stop ends the rest of stop_timeout: a second signal. Nil: never.
	Stop context.Context
}

// complete fills in what was left out and registers the figures.
func (o Options) complete(ctx context.Context) (Options, error) {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Figures == nil {
		o.Figures = prometheus.NewRegistry() // counted all the same, and never read
	}
	if o.Stop == nil {
		o.Stop = context.WithoutCancel(ctx)
	}
	var err error
	o.figures, err = metrics.New(o.Figures)
	return o, err
}

// Run runs the controller in a mode until ctx ends and what was running has
// settled or stays as its record says.
func Run(ctx context.Context, c Config, mode Mode, o Options) (err error) {
	if err := c.Check(mode); err != nil {
		return err
	}
	if o, err = o.complete(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	if err := checkPrivate(c.StateDir); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var face *face
	if mode.HasService() {
		if face, err = openFace(ctx, c, o); err != nil {
			return err
		}
		// The lanes end before the service that they talk to.
		defer func() { err = join([]error{err, face.close()}) }()
		go func() {
			if err := face.serve(); err != nil {
				cancel(fmt.Errorf("job service: %w", err))
			}
		}()
		go func() {
			select {
			case <-ctx.Done():
			case <-face.jobs.Failed():
				// No later write is acknowledged; a fresh process reads the state
				// again (I35).
				cancel(fmt.Errorf("job service: storage failed: %w", face.jobs.Err()))
			}
		}()
	}
	if !mode.HasLanes() {
		notify(o.Logger, daemon.SdNotifyReady)
		<-ctx.Done()
		notify(o.Logger, daemon.SdNotifyStopping)
		return onlyFailure(ctx)
	}
	w, err := openWork(ctx, c, mode, face, o)
	if err != nil {
		return err
	}
	defer func() { err = join([]error{err, w.close()}) }()
	drain, drained := context.WithCancel(ctx)
	defer drained()
	operators, err := openConsole(c, w, drained, o.Logger)
	if err != nil {
		return err
	}
	defer func() { err = join([]error{err, operators.Close()}) }()
	go func() {
		if err := operators.Serve(); err != nil {
			cancel(fmt.Errorf("admin_socket: %w", err))
		}
	}()
	notify(o.Logger, daemon.SdNotifyReady)
	err = w.service.Run(drain, o.Stop)
	if err == nil && ctx.Err() == nil {
		// An operator drained it: ending now would only make a supervisor start
		// it again.
		o.Logger.Info("drained: nothing is in flight; the process stays until it is stopped")
		<-ctx.Done()
	}
	notify(o.Logger, daemon.SdNotifyStopping)
	return join([]error{onlyFailure(ctx), err})
}

// onlyFailure is the cause with which Run ended itself, or nil after a signal.
func onlyFailure(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// notify tells systemd; without it nothing happens.
func notify(log hclog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("systemd was not notified", "error", err)
	}
}

func checkPrivate(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("state_dir %s must be a directory of mode 0700: chmod 0700 it", dir)
	}
	return nil
}

func join(problems []error) error { return errors.Join(problems...) }

// worstCase lists what the mode may keep at most.
func worstCase(c Config, mode Mode) []use {
	var all []use
	if mode.HasLanes() {
		all = append(all,
			use{"attempt records", c.AttemptsDir(), int64(c.Lanes.MaxActive+c.Lanes.History) * attempt.MaxRecordBytes},
			use{"inputs in use", c.UploadsDir(), int64(c.Lanes.Count) * api.MaxUploadBytes},
		)
	}
	if mode.HasService() {
		all = append(all, use{"jobs, uploads and results, which grow with the number of jobs", c.JobsDir(), -1})
	}
	return all
}
