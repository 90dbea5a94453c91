package controllertest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"github.com/quittance/quittance/controller/api"
)

// maxInputs bounds the inputs that are searched for; a run of a thousand jobs
// shows nothing more than its first ones do.
const maxInputs = 16

// Where a site's secrets may lie below its directory, whichever state directory
// of the test's it is.
const (
	jobsDir     = "*/jobs*"     // the job service's database and blobs; also those that a test puts aside
	attemptsDir = "*/attempts*" // outcomes are retained there byte for byte; also copies that a test makes
	inputsDir   = "*/inputs"    // uploads while they are used
)

// Secret registers what must not be found at the end of the test in any log of
// the controller or the agent, nor in their files but those named.
func (s *Site) Secret(name string, value []byte, may ...string) {
	s.Lab.Secrets.Add(name, value, may...)
}

// secretInput registers a job's input and the worker's answer to it.
func (s *Site) secretInput(text string) {
	if s.inputs++; s.inputs > maxInputs {
		return
	}
	s.Secret(fmt.Sprintf("input %d", s.inputs), []byte(text), jobsDir, inputsDir)
	s.Secret(fmt.Sprintf("result %d", s.inputs), AnswerTo(text), jobsDir, attemptsDir)
}

// Read is what the job service answers to a user's GET.
func (s *Site) Read(path string) []byte {
	s.T.Helper()
	status, data := s.call(http.MethodGet, path, "", "", nil)
	if status != http.StatusOK {
		s.T.Fatalf("GET %s: status %d: %s", path, status, data)
	}
	return data
}

// Events is a job's stream of events up to the one after which it has the state.
func (s *Site) Events(id string, state api.JobState) []byte {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.listen+"/v1/jobs/"+id+"/events", nil)
	if err != nil {
		s.T.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+s.token())
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.T.Fatal(err)
	}
	defer answer.Body.Close() // the rest of the stream is not read
	var text []byte
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		text = append(append(text, lines.Bytes()...), '\n')
		if bytes.Contains(lines.Bytes(), []byte(`"state":"`+string(state)+`"`)) {
			return text
		}
	}
	s.T.Fatalf("the stream ends before the job is %s (%v):\n%s", state, lines.Err(), text)
	return nil
}

// LogTo gives later processes a standard error of the test's own; their Log has
// nothing.
func (s *Site) LogTo(stderr *os.File) { s.stderr = stderr }

// searchSecrets fails the test for every secret where it does not belong. No
// process of the site runs any more; the agent's side is the lab's, which has
// the same secrets.
func (s *Site) searchSecrets() {
	for _, file := range []string{"user/state/provider.key", "user/state/jobs/first-token"} {
		if err := s.Lab.Secrets.AddFile(file, s.dir, file, "*/"+filepath.Base(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.T.Error(err)
		}
	}
	if err := s.Lab.Secrets.AddFile("host key", s.Lab.StateDir(), "host.key"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.T.Error(err)
	}
	found, err := s.Lab.Secrets.Under(s.dir)
	if err != nil {
		s.T.Error(err)
	}
	for i, p := range s.processes {
		found = append(found, s.Lab.Secrets.In(fmt.Sprintf("controller %d's log", i+1), []byte(p.Log()))...)
	}
	for _, f := range found {
		s.T.Errorf("secret found: %s", f)
	}
}
