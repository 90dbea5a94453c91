package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/quittance/quittance/integration/canary"
)

// Where the demonstration's secrets may lie, below its directory.
const (
	jobsDir     = "controller/jobs"     // the job service's database and blobs
	inputsDir   = "controller/inputs"   // uploads while they are used
	attemptsDir = "controller/attempts" // outcomes are retained there byte for byte
)

// secretInput registers what a user handed in, which may lie in its own file too.
func (n *node) secretInput(name string, content []byte, may ...string) {
	n.secrets.Add("input "+name, content, append(may, jobsDir, inputsDir)...)
}

// secretResult registers what a worker answered.
func (n *node) secretResult(name string, content []byte) {
	n.secrets.Add("result "+name, content, jobsDir, attemptsDir)
}

// searchSecrets looks for keys, tokens, inputs and results in everything that
// the programs wrote: their logs, the ledger, receipts, records and databases,
// and what the engine was told (I37). No program runs any more. The engine's
// layers hold images and what workers did with their own files.
func (n *node) searchSecrets() error {
	for _, file := range []string{"host/host.key", "controller/provider.key", "controller/jobs/first-token"} {
		if err := n.secrets.AddFile(file, n.dir, file); err != nil {
			return err
		}
	}
	found, err := n.secrets.Under(n.dir, "bin",
		"engine/root/io.containerd.content.v1.content", "engine/root/io.containerd.snapshotter.v1.overlayfs")
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("secrets are where they do not belong: %s", strings.Join(found, "; "))
	}
	// Where one may lie it is found: the search can see it.
	var control canary.Set
	control.Add("input text", []byte(article))
	if found, err := control.Under(n.path(jobsDir)); err != nil || len(found) == 0 {
		return fmt.Errorf("the search does not even find a job's input in the job service: %w", errors.Join(err, fs.ErrNotExist))
	}
	n.show.fact("%d secrets (keys, tokens, inputs, results): in no log, receipt, ledger or record of an engine", n.secrets.Len())
	return nil
}
