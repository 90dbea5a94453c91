package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/quittance/quittance/integration/canary"
)

// resultFile keeps the result of controllerJob's job for secrets.
const resultFile = "/root/result"

// secrets looks for the keys, the token, and one job's input and result where
// they do not belong: in everything that the journal has of this boot, in what
// the two daemons keep, in the other logs and in every process's arguments (I37).
func secrets(ctx context.Context, _ *task) (string, error) {
	var all canary.Set
	const agent = "/var/lib/quittance"
	for _, key := range [][2]string{{agent, "host.key"}, {controllerState, "provider.key"}, {controllerState, "jobs/first-token"}} {
		if err := all.AddFile(key[1], key[0], key[1]); err != nil {
			return "", err
		}
	}
	result, err := os.ReadFile(resultFile)
	if err != nil {
		return "", err
	}
	all.Add("input", []byte(article), "jobs", "inputs")
	all.Add("result", result, "jobs", "attempts")
	if all.Len() != 5 {
		return "", fmt.Errorf("%d secrets", all.Len())
	}
	journal, err := run(ctx, "journalctl", "--no-pager", "-q", "-b", "-o", "export")
	if err != nil {
		return "", err
	}
	if !strings.Contains(journal, "QUITTANCE_EVENT=accepted") {
		return "", errors.New("the journal has nothing of the agent")
	}
	found := all.In("the journal", []byte(journal))
	arguments, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return "", err
	}
	for _, file := range arguments {
		line, err := os.ReadFile(file)
		if err == nil { // or the process has ended
			found = append(found, all.In(file, line)...)
		}
	}
	for _, root := range []string{agent, controllerState, "/run/quittance", "/run/log", "/var/log"} {
		files, err := all.Under(root, "journal") // which is read above
		if err != nil {
			return "", err
		}
		found = append(found, files...)
	}
	if len(found) > 0 {
		return "", fmt.Errorf("secrets are where they do not belong: %s", strings.Join(found, "; "))
	}
	return fmt.Sprintf("none of %d secrets in %d KiB of the journal, %d processes' arguments and the daemons' files",
		all.Len(), len(journal)>>10, len(arguments)), nil
}
