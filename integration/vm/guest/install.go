package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// debs are the packages that the tests brought in a directory of the payload.
func debs(dir string) ([]string, error) {
	found, err := filepath.Glob("/payload/" + dir + "/*.deb")
	if err == nil && len(found) != 3 {
		err = fmt.Errorf("%d packages in %s, expected 3", len(found), dir)
	}
	return found, err
}

// install installs the three packages as an administrator does, without any
// package source: what they depend on must be what is there.
func install(ctx context.Context, _ *task) (string, error) {
	packages, err := debs("packages")
	if err != nil {
		return "", err
	}
	if _, err := run(ctx, "apt-get", append([]string{"-y", "--no-install-recommends", "install"}, packages...)...); err != nil {
		return "", err
	}
	// dpkg knows them as whole, and their files are as packed.
	for _, name := range []string{"quittance-hostagent", "quittance-controller", "quittance-agentctl"} {
		state, err := run(ctx, "dpkg-query", "-W", "-f", "${db:Status-Abbrev}", name)
		if err != nil {
			return "", err
		}
		if strings.TrimSpace(state) != "ii" {
			return "", fmt.Errorf("%s is in state %q", name, state)
		}
		if changed, err := run(ctx, "dpkg", "--verify", name); err != nil || changed != "" {
			return "", fmt.Errorf("%s: files differ from the package: %w: %s", name, errors.Join(err, errors.New("dpkg --verify")), changed)
		}
	}
	version, err := run(ctx, "dpkg-query", "-W", "-f", "${Version}", "quittance-hostagent")
	if err != nil {
		return "", err
	}
	program, err := run(ctx, "/usr/sbin/hostagent", "version")
	if err != nil {
		return "", err
	}
	if program != "hostagent "+version {
		return "", fmt.Errorf("the package says %s, the program %q", version, program)
	}
	return version, nil
}

// file is what an installed file must be.
type file struct {
	path, owner, group string
	mode               os.FileMode
}

func files(context.Context, *task) (string, error) {
	wanted := []file{
		{"/var/lib/quittance", "root", "root", 0o700 | os.ModeDir},
		{"/var/lib/quittance/ledger", "root", "root", 0o700 | os.ModeDir},
		{"/var/lib/quittance/host.key", "root", "root", 0o600},
		{"/run/quittance", "root", "root", 0o755 | os.ModeDir},
		{"/run/quittance/agent.sock", "root", "quittance", 0o660 | os.ModeSocket},
		{"/etc/quittance/profiles", "root", "root", 0o755 | os.ModeDir},
		{"/etc/quittance/offerings", "root", "root", 0o755 | os.ModeDir},
		{"/usr/sbin/hostagent", "root", "root", 0o755},
	}
	var problems []error
	for _, w := range wanted {
		problems = append(problems, w.check())
	}
	account, err := user.Lookup(controllerUser)
	if err != nil {
		return "", errors.Join(append(problems, err)...)
	}
	group, err := user.LookupGroup("quittance")
	if err != nil {
		return "", errors.Join(append(problems, err)...)
	}
	groups, err := account.GroupIds()
	if err != nil {
		return "", errors.Join(append(problems, err)...)
	}
	if !strings.Contains(" "+strings.Join(groups, " ")+" ", " "+group.Gid+" ") {
		problems = append(problems, fmt.Errorf("%s is not a member of quittance", controllerUser))
	}
	return fmt.Sprintf("%d paths, the socket's group %s, user %s", len(wanted), group.Gid, account.Uid), errors.Join(problems...)
}

func (f file) check() error {
	info, err := os.Lstat(f.path)
	if err != nil {
		return err
	}
	var problems []error
	if info.Mode() != f.mode {
		problems = append(problems, fmt.Errorf("%s has mode %s, expected %s", f.path, info.Mode(), f.mode))
	}
	stat := info.Sys().(*syscall.Stat_t)
	owner, err := user.LookupId(strconv.Itoa(int(stat.Uid)))
	problems = append(problems, err)
	group, err := user.LookupGroupId(strconv.Itoa(int(stat.Gid)))
	problems = append(problems, err)
	if owner != nil && group != nil && (owner.Username != f.owner || group.Name != f.group) {
		problems = append(problems, fmt.Errorf("%s belongs to %s:%s, expected %s:%s", f.path, owner.Username, group.Name, f.owner, f.group))
	}
	return errors.Join(problems...)
}

// units checks what runs after the installation, and after every boot.
func units(ctx context.Context, _ *task) (string, error) {
	return "", await(ctx, patience, "the units run", func() error {
		failed, err := run(ctx, "systemctl", "--failed", "--plain", "--no-legend")
		if err == nil && failed != "" {
			err = fmt.Errorf("failed units: %s", failed)
		}
		return errors.Join(err,
			properties(ctx, socketUnit, "ActiveState=active", "UnitFileState=enabled"),
			properties(ctx, workersUnitOf, "ActiveState=active", "SubState=running", "UnitFileState=enabled", "NRestarts=0", "Delegate=yes"),
			properties(ctx, agentUnit, "ActiveState=active", "SubState=running", "UnitFileState=enabled", "NRestarts=0",
				"Type=notify", "StatusText=serving /run/quittance/agent.sock", "WatchdogUSec=1min"))
	})
}

// unitFiles lets systemd itself look for mistakes in the unit files.
func unitFiles(ctx context.Context, _ *task) (string, error) {
	said, err := runAs(ctx, nil, "", "/bin/sh", "-c",
		"systemd-analyze verify --man=no "+strings.Join([]string{agentUnit, socketUnit, workersUnitOf, controllerUnit}, " ")+" 2>&1")
	if err != nil {
		return "", err
	}
	if said != "" {
		return "", fmt.Errorf("systemd-analyze verify: %s", said)
	}
	return "systemd-analyze verify says nothing", nil
}

var exposure = regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`)

// exposures are the highest figures of systemd-analyze security that each unit
// may have, from 0 (closed) to 10: a change that opens a unit is seen here.
// packaging/systemd/README.md has them for people.
var exposures = map[string]float64{agentUnit: 2.8, workersUnitOf: 1.8, controllerUnit: 4.3}

func security(ctx context.Context, t *task) (string, error) {
	var figures []string
	var problems []error
	for _, unit := range []string{agentUnit, workersUnitOf, controllerUnit} {
		out, err := run(ctx, "systemd-analyze", "--no-pager", "security", unit)
		if err != nil {
			return "", err
		}
		match := exposure.FindStringSubmatch(out)
		if match == nil {
			return "", fmt.Errorf("systemd-analyze security %s gave no figure: %s", unit, last(out, 300))
		}
		figure, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			return "", err
		}
		if figure > exposures[unit] {
			problems = append(problems, fmt.Errorf("%s: exposure %.1f is above %.1f:\n%s", unit, figure, exposures[unit], out))
		}
		figures = append(figures, fmt.Sprintf("%s %.1f", strings.TrimSuffix(strings.TrimPrefix(unit, "quittance-"), ".service"), figure))
	}
	return strings.Join(figures, ", "), errors.Join(problems...)
}

// purgeAndReinstall takes everything away and puts it back: the machine keeps
// the marker, and a new installation never makes a second ledger by itself.
func purgeAndReinstall(ctx context.Context, t *task) (string, error) {
	if _, err := run(ctx, "apt-get", "-y", "purge", "quittance-hostagent", "quittance-controller", "quittance-agentctl"); err != nil {
		return "", err
	}
	var problems []error
	for _, path := range []string{"/usr/sbin/hostagent", "/etc/quittance/hostagent.toml", "/var/lib/quittance/ledger", "/var/lib/quittance/host.key"} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			problems = append(problems, fmt.Errorf("%s is still there after the purge: %v", path, err))
		}
	}
	if _, err := os.Lstat("/var/lib/quittance.created"); err != nil {
		problems = append(problems, fmt.Errorf("the marker did not outlive the purge: %w", err))
	}
	packages, err := debs("packages")
	if err != nil {
		return "", errors.Join(append(problems, err)...)
	}
	if _, err := run(ctx, "apt-get", append([]string{"-y", "--no-install-recommends", "install"}, packages...)...); err != nil {
		return "", errors.Join(append(problems, err)...)
	}
	if _, err := os.Lstat("/var/lib/quittance/ledger"); !errors.Is(err, os.ErrNotExist) {
		problems = append(problems, fmt.Errorf("the reinstallation made a second ledger by itself: %v", err))
	}
	if err := errors.Join(problems...); err != nil {
		return "", err
	}
	// The way on is the administrator's to choose.
	generation, err := os.ReadFile("/var/lib/quittance.created")
	if err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "stop", socketUnit, agentUnit); err != nil {
		return "", err
	}
	if _, err := run(ctx, "/usr/sbin/hostagent", "ledger", "abandon", strings.TrimSpace(string(generation))); err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "reset-failed"); err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "start", socketUnit, agentUnit); err != nil {
		return "", err
	}
	host, _, err := operator(ctx)
	if err != nil {
		return "", err
	}
	if string(host.Generation) == strings.TrimSpace(string(generation)) {
		return "", errors.New("the old generation was made again")
	}
	return "the marker stays, no second ledger is made until the old one is abandoned", nil
}
