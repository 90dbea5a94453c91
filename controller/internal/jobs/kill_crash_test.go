//go:build crash

package jobs

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/signing"
	"github.com/quittance/quittance/protocol"
)

// Names of the child process's environment.
const (
	childDirectory = "QUITTANCE_TEST_JOBS_DIRECTORY"
	childAddress   = "QUITTANCE_TEST_JOBS_ADDRESS"
)

// TestMain turns the test binary into a job service where its environment says
// so, so that a real process can be killed.
func TestMain(m *testing.M) {
	if directory := os.Getenv(childDirectory); directory != "" {
		if err := serveChild(directory, os.Getenv(childAddress)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func serveChild(directory, address string) error {
	s, err := Open(context.Background(), Config{Directory: directory, PublicOrigin: "http://" + address})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return http.Serve(listener, s.Handler())
}

// child is a service in a process of its own.
type child struct {
	command *exec.Cmd
	origin  string
}

func startChild(t *testing.T, directory, address string) *child {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), childDirectory+"="+directory, childAddress+"="+address)
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the service did not start: %q %v", line, err)
	}
	return &child{command: command, origin: "http://" + address}
}

func (c *child) kill(t *testing.T) {
	t.Helper()
	if err := c.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := c.command.Wait(); !errors.As(err, &exit) {
		t.Fatal(err)
	}
}

// client sends the same exact request until it is answered, as a controller does.
type client struct {
	origin, token string
	signer        *signing.Signer
	http          *http.Client
}

// once sends a request; ok is false where its answer was lost.
func (c *client) once(method, path, key string, body []byte, signed bool) (reply, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.origin+path, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set(api.HeaderVersion, "1")
	r.Header.Set("Content-Type", api.ContentJSON)
	if signed {
		if _, err := c.signer.Sign(r, body); err != nil {
			panic(err)
		}
	} else {
		r.Header.Set("Authorization", "Bearer "+c.token)
		r.Header.Set(api.HeaderIdempotencyKey, key)
	}
	response, err := c.http.Do(r)
	if err != nil {
		return reply{}, false
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return reply{}, false
	}
	return reply{status: response.StatusCode, header: response.Header, body: data}, true
}

// life is one job's path and every acknowledgement that it got.
type life struct {
	key                     string
	create, start, complete []byte // exact requests
	job, attempt            string
	receipt                 *api.CompleteReceipt
}

// I10, I12, FR-26…FR-28: a service killed at any moment has everything that it
// acknowledged, and the same requests get the same answers. Each job ends once.
func TestKilledServiceKeepsWhatItAcknowledged(t *testing.T) {
	directory := t.TempDir()
	address := freeAddress(t)
	// Keys and announcement are made by a service that ends in peace.
	private, err := signing.CreateKey(t.TempDir()+"/key", "node-1")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signing.NewSigner(private, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{origin: "http://" + address, signer: signer, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	store := protocol.NewID()
	public, ok := private.Public().(ed25519.PublicKey)
	if !ok {
		t.Fatal("no public half")
	}
	c.token = prepare(t, directory, address, public)

	var lives []*life
	const rounds, workers = 6, 4
	for round := range rounds {
		process := startChild(t, directory, address)
		if round == 0 {
			n := &node{store: store}
			if got, ok := c.once("POST", "/provider/v1/hello", "", api.Encode(n.announcement(api.MaxLanes)), true); !ok || got.status != 200 {
				t.Fatalf("hello: %s", got.body)
			}
		}
		var mu sync.Mutex
		var group sync.WaitGroup
		stop := make(chan struct{})
		acknowledged := make(chan struct{}, 1<<16)
		for worker := range workers {
			group.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					l := newLife(fmt.Sprintf("r%d-w%d-%d", round, worker, n))
					mu.Lock()
					lives = append(lives, l)
					mu.Unlock()
					err := l.advance(c, store)
					if errors.Is(err, errGone) {
						return
					}
					if err != nil {
						t.Errorf("%s: %v", l.key, err)
						return
					}
					acknowledged <- struct{}{}
				}
			})
		}
		// Strike in the middle of the load, later in each round.
		limit := time.After(5 * time.Minute)
		for range 3 + 5*round {
			select {
			case <-acknowledged:
			case <-limit:
				t.Fatal("the load does not move")
			}
		}
		process.kill(t)
		close(stop)
		group.Wait()
	}

	process := startChild(t, directory, address)
	defer process.kill(t)
	jobs := map[string]bool{}
	for _, l := range lives {
		before := *l
		if err := l.advance(c, store); err != nil {
			t.Fatalf("%s: %v", l.key, err)
		}
		if before.job != "" && before.job != l.job || before.attempt != "" && before.attempt != l.attempt {
			t.Fatalf("%s: acknowledged as %s %s, now %s %s", l.key, before.job, before.attempt, l.job, l.attempt)
		}
		if before.receipt != nil && before.receipt.CommittedAt != l.receipt.CommittedAt {
			t.Fatalf("%s: committed twice", l.key)
		}
		if jobs[l.job] {
			t.Fatalf("%s: one job for two operations", l.key)
		}
		jobs[l.job] = true
		l.audit(t, c)
	}
	if len(lives) < 20 {
		t.Fatalf("only %d jobs were tried", len(lives))
	}
}

// freeAddress finds a port below those that the kernel gives to whoever asks for
// any, so that nobody has it when the service is started on it again.
func freeAddress(t *testing.T) string {
	t.Helper()
	for port := 20_000 + os.Getpid()*16%10_000; port < 32_768; port++ {
		address := fmt.Sprintf("127.0.0.1:%d", port)
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		return address
	}
	t.Fatal("no port is free")
	return ""
}

// prepare registers the key and makes a token.
func prepare(t *testing.T, directory, address string, public ed25519.PublicKey) (token string) {
	t.Helper()
	s, err := Open(t.Context(), Config{Directory: directory, PublicOrigin: "http://" + address})
	if err != nil {
		t.Fatal(err)
	}
	line, err := signing.AuthorizedLine("node-1", public)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddProviderKey(t.Context(), line); err != nil {
		t.Fatal(err)
	}
	if token, err = s.CreateToken(t.Context(), TokenSpec{Workspace: "default", Principal: "alice", Role: "admin"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return token
}

func newLife(key string) *life {
	text := "input of " + key
	return &life{key: key, create: api.Encode(&api.CreateJob{Kind: "echo", Input: &api.CreateData{Text: &text}})}
}

// errGone means that an answer was lost: the service is not there any more.
var errGone = errors.New("the answer was lost")

// step sends one request and decodes a successful answer.
func step[T any](c *client, method, path, key string, body []byte, signed bool) (answer T, err error) {
	got, ok := c.once(method, path, key, body, signed)
	if !ok {
		return answer, errGone
	}
	if got.status != http.StatusOK && got.status != http.StatusCreated {
		return answer, fmt.Errorf("%s %s: status %d: %s", method, path, got.status, got.body)
	}
	return answer, api.Decode(got.body, 1<<20, &answer)
}

// advance takes a job from wherever it is to its end, repeating every step from
// the first: repeated steps must answer as before.
func (l *life) advance(c *client, store protocol.ID) error {
	created, err := step[api.CreateJobAnswer](c, "POST", "/v1/jobs", l.key, l.create, false)
	if err != nil {
		return err
	}
	l.job = created.Job.Job
	l.start = api.Encode(&api.Start{Key: l.key, Job: l.job, Kind: "echo", Store: store, Input: created.Job.Input})
	admission, err := step[api.Admission](c, "POST", "/provider/v1/attempts", "", l.start, true)
	if err != nil {
		return err
	}
	l.attempt = admission.Attempt
	l.complete = api.Encode(completeOf(l.attempt, "result of "+l.key))
	receipt, err := step[api.CompleteReceipt](c, "POST", "/provider/v1/attempts/"+l.attempt+"/complete", "", l.complete, true)
	if err != nil {
		return err
	}
	l.receipt = &receipt
	return nil
}

func (l *life) audit(t *testing.T, c *client) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", c.origin+"/v1/jobs/"+l.job+"/result", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	response, err := c.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil || string(data) != "result of "+l.key {
		t.Fatalf("%s: result %q, %v", l.key, data, err)
	}
	if !strings.HasPrefix(response.Header.Get("Content-Digest"), "sha-256=:") {
		t.Fatal("no digest")
	}
}
