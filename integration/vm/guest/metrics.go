package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The agent's figures as quittance-hostagent-metrics(7) sets them up.
const (
	metricsGroup  = "quittance-metrics"
	metricsSocket = "/run/quittance/metrics.sock"
	metricsURL    = "http://127.0.0.1:9471/metrics"
	metricsProxy  = "quittance-hostagent-metrics.service"
	metricsDoor   = "quittance-hostagent-metrics.socket"
	metricsUnits  = "/usr/share/doc/quittance-hostagent/metrics/"
	unitDir       = "/etc/systemd/system/"
	metricsDropIn = unitDir + agentUnit + ".d/metrics.conf"
)

// metrics reads the agent's figures through the packaged proxy, which is no
// root's process, also after the agent has made its socket anew; who is not in
// the group is refused at the socket itself.
func metrics(ctx context.Context, _ *task) (_ string, err error) {
	config, err := os.ReadFile(agentConfig)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, endMetrics(ctx, string(config))) }()
	if err := beginMetrics(ctx, string(config)); err != nil {
		return "", err
	}
	socket := file{metricsSocket, "root", metricsGroup, 0o660 | os.ModeSocket}
	if err := await(ctx, patience, "the agent serves its figures", socket.check); err != nil {
		return "", err
	}
	figures, err := scrape(ctx)
	if err != nil {
		return "", err
	}
	proxy, err := unprivileged(ctx)
	if err != nil {
		return "", err
	}
	if err := refusedFigures(ctx); err != nil {
		return "", err
	}
	if _, err := run(ctx, "systemctl", "restart", agentUnit); err != nil {
		return "", err
	}
	if _, err := scrape(ctx); err != nil {
		return "", fmt.Errorf("after a restart of the agent: %w", err)
	}
	return fmt.Sprintf("%d lines through the proxy, which is user %s; nobody and the controller's user are refused", figures, proxy), nil
}

// beginMetrics does what the man page says, with the packaged units.
func beginMetrics(ctx context.Context, config string) error {
	if _, err := run(ctx, "groupadd", "--system", metricsGroup); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(metricsDropIn), 0o755); err != nil {
		return err
	}
	for _, unit := range []string{metricsProxy, metricsDoor} {
		text, err := os.ReadFile(metricsUnits + unit)
		if err != nil {
			return err
		}
		if err := writeFile(unitDir+unit, string(text)); err != nil {
			return err
		}
	}
	if err := errors.Join(
		writeFile(metricsDropIn, "[Service]\nSupplementaryGroups="+metricsGroup+"\n"),
		writeFile(agentConfig, config+fmt.Sprintf("\nmetrics_socket = %q\nmetrics_group = %q\n", metricsSocket, metricsGroup)),
	); err != nil {
		return err
	}
	for _, command := range [][]string{{"daemon-reload"}, {"restart", agentUnit}, {"enable", "--now", metricsDoor}} {
		if _, err := run(ctx, "systemctl", command...); err != nil {
			return err
		}
	}
	said, err := runAs(ctx, nil, "", "/bin/sh", "-c", "systemd-analyze verify --man=no "+metricsProxy+" "+metricsDoor+" 2>&1")
	if err == nil && said != "" {
		err = fmt.Errorf("systemd-analyze verify: %s", said)
	}
	return err
}

// endMetrics leaves the machine as the other commands expect it.
func endMetrics(ctx context.Context, config string) error {
	_, disableErr := run(ctx, "systemctl", "disable", "--now", metricsDoor)
	_, stopErr := run(ctx, "systemctl", "stop", metricsProxy)
	problems := []error{disableErr, stopErr, writeFile(agentConfig, config)}
	for _, path := range []string{unitDir + metricsProxy, unitDir + metricsDoor, metricsDropIn, filepath.Dir(metricsDropIn)} {
		problems = append(problems, os.Remove(path))
	}
	_, reloadErr := run(ctx, "systemctl", "daemon-reload")
	_, restartErr := run(ctx, "systemctl", "restart", agentUnit)
	_, groupErr := run(ctx, "groupdel", metricsGroup)
	return errors.Join(append(problems, reloadErr, restartErr, groupErr)...)
}

// scrape asks as Prometheus does, and returns how many lines came.
func scrape(ctx context.Context) (lines int, err error) {
	err = await(ctx, patience, "figures come through the proxy", func() error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, metricsURL, nil)
		if err != nil {
			return err
		}
		request.Close = true // each through a connection of its own
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
		if err != nil {
			return err
		}
		text := string(body)
		for _, wanted := range []string{`quittance_build_info{program="hostagent"`, "\nquittance_agent_slots_max 8\n", "\nquittance_agent_receipt_index "} {
			if !strings.Contains(text, wanted) {
				return fmt.Errorf("status %s, without %q: %s", answer.Status, wanted, last(text, 500))
			}
		}
		lines = strings.Count(text, "\n")
		return nil
	})
	return lines, err
}

// unprivileged looks at the proxy's process: not root's, without capabilities,
// and in the group.
func unprivileged(ctx context.Context) (uid string, err error) {
	pid, err := mainPID(ctx, metricsProxy)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "", err
	}
	status := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		status[name] = strings.Fields(value)
	}
	group, err := user.LookupGroup(metricsGroup)
	if err != nil {
		return "", err
	}
	if len(status["Uid"]) != 4 || slices.Contains(status["Uid"], "0") || !slices.Contains(status["Groups"], group.Gid) ||
		strings.Trim(strings.Join(status["CapBnd"], ""), "0") != "" {
		return "", fmt.Errorf("the proxy has users %v, groups %v, capabilities %v", status["Uid"], status["Groups"], status["CapBnd"])
	}
	return status["Uid"][0], nil
}

// refusedFigures tries the socket as a stranger, as the controller's user, and
// as a stranger in the group.
func refusedFigures(ctx context.Context) error {
	group, err := user.LookupGroup(metricsGroup)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(group.Gid, 10, 32)
	if err != nil {
		return err
	}
	var problems []error
	for _, a := range []attempt{
		{"nobody", "connect", metricsSocket, "connect to the figures' socket", noAccess},
		{controllerUser, "connect", metricsSocket, "connect to the figures' socket", noAccess},
		{"nobody", "connect", metricsSocket, "connect to the figures' socket", allowed}, // with the group, see below
	} {
		as, err := credential(a.user)
		if err != nil {
			return err
		}
		if a.wanted == allowed {
			as.Groups = append(as.Groups, uint32(gid))
		}
		got, err := runAs(ctx, as, "", "/payload/guest", "try", a.what, a.target)
		if err == nil && got != a.wanted {
			err = fmt.Errorf("%s with groups %v tried to %s %s: %s, expected %s", a.user, as.Groups, a.what, a.target, got, a.wanted)
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
