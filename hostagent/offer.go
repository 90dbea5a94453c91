package hostagent

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/devices"
	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/profiles"
)

// offerInterval is how often the engine is asked again for the profiles'
// images: one that is imported while the agent runs becomes available.
const offerInterval = 5 * time.Second

// maxProfileBytes bounds a profile's canonical form: the ledger keeps it with
// every allocation that is not released.
const maxProfileBytes = 16 << 10

// offer keeps core's table of profiles: read from the directory at start and on
// reload, checked against engine and machine again and again. Owner of its
// state is the goroutine of run.
type offer struct {
	cfg     Config
	engine  *engine.Engine
	devices *deviceTable
	post    func(core.Event)
	log     hclog.Logger

	loaded []profiles.Loaded
	last   map[string]string // the reason that was logged last, by profile
}

// read reads the directory. One that cannot be read offers nothing, and the
// agent runs on.
func (o *offer) read() {
	loaded, err := profiles.Load(o.cfg.ProfileDir)
	if err != nil {
		o.log.Error("profiles_unreadable", "error", err)
	}
	o.loaded = loaded
	asked := map[string]bool{}
	for _, l := range loaded {
		asked[l.Name] = l.Err == nil && len(l.Profile.Resources.Devices) > 0
	}
	o.devices.ask(asked)
	o.log.Info("profiles_read", "directory", o.cfg.ProfileDir, "profiles", len(loaded))
}

// check publishes what is available now.
func (o *offer) check(ctx context.Context) {
	list := make([]core.Loaded, 0, len(o.loaded))
	found := o.devices.survey()
	for _, l := range o.loaded {
		entry := core.Loaded{}
		entry.Info.Name, entry.Info.Devices = l.Name, []string{}
		if l.Err != nil {
			entry.Info.Reason = l.Err.Error()
		} else {
			entry = o.checked(ctx, l.Profile, &found)
		}
		if reason := entry.Info.Reason; reason != o.last[l.Name] {
			o.last[l.Name] = reason
			if reason == "" {
				o.log.Info("profile_available", "profile", l.Name)
			} else {
				o.log.Warn("profile_unavailable", "profile", l.Name, "reason", reason)
			}
		}
		list = append(list, entry)
	}
	o.post(core.ProfilesLoaded{Profiles: list, Devices: shown(found)})
}

func (o *offer) checked(ctx context.Context, p profiles.Profile, found *devices.Found) core.Loaded {
	l := core.Loaded{Profile: &p}
	l.Info.Name, l.Info.Digest, l.Info.ImageDigest, l.Info.Limits = p.Name, p.Digest(), p.ImageDigest(), p.Limits()
	l.Info.Ready, l.Info.Devices = p.Channel.Ready, p.DeviceKinds()
	if l.Info.Devices == nil {
		l.Info.Devices = []string{}
	}
	l.Info.LeaseMillis, l.Info.StopGraceMillis = p.Lifecycle.LeaseMillis, p.Lifecycle.StopGraceMillis
	l.Info.MaxLifetimeMilli, l.Info.MaxChannels = p.Lifecycle.MaxLifetimeMillis, int(p.Channel.MaxChannels)
	if l.Info.Reason = o.whyNot(ctx, &p); l.Info.Reason == "" {
		l.Info.Reason = found.Lacks(&p)
		l.LacksDevices = l.Info.Reason != ""
	}
	l.Info.Available = l.Info.Reason == ""
	return l
}

// whyNot is why a profile cannot be used now, with the remedy; "" if it can.
func (o *offer) whyNot(ctx context.Context, p *profiles.Profile) string {
	if size := len(p.Canonical()); size > maxProfileBytes {
		return fmt.Sprintf("the profile's canonical form has %d bytes; at most %d are kept: shorten args, env or mounts", size, maxProfileBytes)
	}
	if p.Lifecycle.Spares > 0 {
		return "this version of the agent keeps no spares: set spares = 0 or use a later version"
	}
	if budget := o.cfg.MemoryBudget.Bytes; budget > 0 && p.Resources.MemoryBytes > budget {
		return "its memory limit alone is over memory_budget: raise the one or lower the other"
	}
	if err := profiles.Check(p, []string{o.cfg.StateDir, filepath.Dir(o.cfg.Socket), o.cfg.EngineAddress}); err != nil {
		return err.Error()
	}
	if health := o.engine.Health(); !health.Available {
		// Asking it anyway would hold the start for every profile's deadline.
		return "the container engine is unavailable: " + health.Detail
	}
	if _, err := o.engine.ResolveImage(ctx, p.Image); err != nil {
		return err.Error()
	}
	return ""
}

// run checks again at intervals and when poked, and reads again on reload.
func (o *offer) run(ctx context.Context, reload <-chan struct{}, poke <-chan struct{}) {
	timer := time.NewTicker(offerInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-reload:
			o.read()
		case <-poke:
		case <-timer.C:
		}
		o.check(ctx)
	}
}
