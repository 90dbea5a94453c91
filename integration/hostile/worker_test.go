//go:build engine

package hostile

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// Workers that misbehave end like all others, with the facts of what they did;
// nothing of them stays.
func TestWorkers(t *testing.T) {
	lab := kit.NewLab(t)
	outside := newOutside(t)
	mode := func(name string, more ...string) []string { return append([]string{"-mode", name}, more...) }
	tmp := func(size string) string {
		return "[filesystem]\ntmpfs = [{ path = \"/tmp\", size = \"" + size + "\" }]\n"
	}
	for name, p := range map[string]agenttest.Profile{
		"never-ready":   {Args: mode("never-ready")},
		"deaf":          {Args: mode("deaf"), Channels: 10000},
		"dies-ready":    {Args: mode("dies-ready")},
		"links":         {Args: mode("links", "-listen", "unix:/tmp/app/app.sock", "-target", outside.path), Address: "unix:///tmp/app/app.sock", Channels: 10000, Tables: tmp("1MiB")},
		"flood":         {Args: mode("flood"), Tables: "[logs]\ncapture = \"64KiB\"\n"},
		"fill":          {Args: mode("fill"), Tables: tmp("16MiB")},
		"fill-memory":   {Args: mode("fill"), Memory: "32MiB", Tables: tmp("1GiB")},
		"ignores-term":  {Args: mode("ignores-term"), Grace: "300ms"},
		"oom-loop":      {Args: mode("child-oom-loop"), Lifecycle: "oom = \"observe\""},
		"child-oom-end": {Args: mode("child-oom-end"), Lifecycle: "oom = \"observe\""},
		"connects-back": {Args: mode("connects-back"), Tables: tmp("1MiB")},
	} {
		p.Program = misbehave
		lab.Profile(name, p)
	}
	lab.Start()
	c := newController(t, lab)
	run := func(name string, f func(t *testing.T)) {
		t.Run(name, func(inner *testing.T) {
			c.t = inner
			f(inner)
		})
		c.t = t
	}

	run("never ready", func(t *testing.T) {
		n := c.start("never-ready")
		if status, answer := c.ask(n, "GET", "/health"); status != 503 {
			t.Errorf("%d %s", status, answer)
		}
		// The agent has no opinion: it runs until somebody ends it (I4).
		if a := c.await(n, protocol.StateStarted); a.State != protocol.StateStarted {
			t.Errorf("state %s", a.State)
		}
		if r := c.retire(n); r.Reason != protocol.ReasonRequested {
			t.Errorf("reason %s", r.Reason)
		}
	})
	run("listens and never accepts", func(t *testing.T) {
		n := c.start("deaf")
		var held []net.Conn
		defer func() {
			for _, conn := range held {
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
			}
		}()
		// The kernel accepts for it until its backlog is full; from then on each
		// call answers within its bound.
		lab.Eventually("the backlog is full", func() (bool, error) {
			began := time.Now()
			conn, err := c.gen.Channel(t.Context(), n, purpose)
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("a channel took %s", took)
			}
			if err == nil {
				held = append(held, conn)
				return false, nil
			}
			if !hostclient.IsCode(err, protocol.CodeNotConnectable) {
				return false, err
			}
			// Before it listens the kernel refuses, which looks the same.
			return len(held) > 0, nil
		})
		if r := c.retire(n); r.OOM.Verdict != protocol.VerdictNotKilled {
			t.Errorf("oom %+v", r.OOM)
		}
	})
	run("dies once it said that it is ready", func(t *testing.T) {
		n := c.start("dies-ready")
		if status, _ := c.ask(n, "GET", "/health"); status != 200 {
			t.Errorf("status %d", status)
		}
		c.await(n, protocol.StateRetired)
		if r := c.retire(n); r.Reason != protocol.ReasonExited || *r.Exit.Code != 3 {
			t.Errorf("reason %s, exit %+v", r.Reason, r.Exit)
		}
	})
	run("links out of its root", func(t *testing.T) { // I4
		n := c.start("links")
		c.said(n, "swapping")
		reached, refused := 0, 0
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end) || reached == 0 || refused == 0; {
			conn, err := c.gen.Channel(t.Context(), n, purpose)
			if err != nil {
				// Never a fault of the agent's, and never a channel.
				if !hostclient.IsCode(err, protocol.CodeNotConnectable) {
					t.Fatalf("channel: %v", err)
				}
				refused++
			} else {
				reached++
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
			}
			if t.Context().Err() != nil || time.Now().After(end.Add(wait)) {
				t.Fatalf("%d reached, %d refused: the race was not run", reached, refused)
			}
		}
		t.Logf("%d channels reached the worker, %d were refused", reached, refused)
		c.retire(n)
		if got := outside.connections(); got != 0 {
			t.Errorf("%d connections left the container's root", got)
		}
	})
	run("floods its log", func(t *testing.T) { // I33
		before := lab.ResidentBytes()
		n := c.start("flood")
		lab.Eventually("64 MiB were written", func() (bool, error) {
			log, err := c.gen.Log(t.Context(), n)
			return log.TotalBytes > 64<<20, err
		})
		log, err := c.gen.Log(t.Context(), n)
		if err != nil || len(log.Head)+len(log.Tail) > 64<<10 || log.DroppedBytes == 0 {
			t.Errorf("head %d, tail %d, dropped %d, %v", len(log.Head), len(log.Tail), log.DroppedBytes, err)
		}
		if grown := lab.ResidentBytes() - before; grown > 32<<20 {
			t.Errorf("the agent grew by %d bytes", grown)
		}
		c.retire(n)
	})
	run("fills its tmpfs", func(t *testing.T) {
		n := c.start("fill")
		c.said(n, "filled 16777216")
		if a := c.await(n, protocol.StateStarted); a.OOM.Verdict != protocol.VerdictNotKilled {
			t.Errorf("oom %+v", a.OOM)
		}
		c.retire(n)
	})
	run("fills a tmpfs larger than its memory", func(t *testing.T) { // I22
		n := c.start("fill-memory")
		c.await(n, protocol.StateRetired)
		if r := c.retire(n); r.Reason != protocol.ReasonOOM || r.OOM.Verdict != protocol.VerdictKilled || *r.OOM.Scope != protocol.ScopeContainer {
			t.Errorf("reason %s, oom %+v", r.Reason, r.OOM)
		}
	})
	run("ignores SIGTERM", func(t *testing.T) {
		n := c.start("ignores-term")
		if status, _ := c.ask(n, "GET", "/health"); status != 200 {
			t.Errorf("status %d", status)
		}
		r := c.retire(n)
		if r.Exit.Signal == nil || *r.Exit.Signal != 9 || r.OOM.Verdict != protocol.VerdictNotKilled || r.Durations.StopMillis < 300 {
			t.Errorf("exit %+v, oom %+v, durations %+v", r.Exit, r.OOM, r.Durations)
		}
	})
	run("kills its children for memory in a loop", func(t *testing.T) { // I33, FR-32
		began := time.Now()
		n := c.start("oom-loop")
		c.said(n, "child 20 ")
		// One receipt may tell of several kills, where they come faster than the
		// agent looks: then the eighth comes later.
		var a protocol.Allocation
		observed := 0
		lab.Eventually("eight receipts tell of kills", func() (bool, error) {
			a, observed = c.await(n, protocol.StateStarted), 0
			for _, r := range a.Receipts {
				if r.Kind == protocol.KindOOMObserved {
					observed++
				}
			}
			return observed >= 8, nil
		})
		// The first eight, then one a minute.
		if most := 8 + int(time.Since(began)/time.Minute); observed > most || a.OOM.Verdict != protocol.VerdictKilled || *a.OOM.Counters.OOMKill < 20 {
			t.Errorf("%d receipts, want at most %d; oom %+v", observed, most, a.OOM)
		}
		if r := c.retire(n); r.OOM.Verdict != protocol.VerdictKilled || r.Reason != protocol.ReasonRequested {
			t.Errorf("reason %s, oom %+v", r.Reason, r.OOM)
		}
	})
	run("exits 0 after its child was killed for memory", func(t *testing.T) { // FR-31
		n := c.start("child-oom-end")
		c.post(n)
		c.await(n, protocol.StateRetired)
		r := c.retire(n)
		if r.Exit.Code == nil || *r.Exit.Code != 0 || r.OOM.Verdict != protocol.VerdictKilled || *r.OOM.Counters.OOMKill < 1 {
			t.Errorf("exit %+v, oom %+v", r.Exit, r.OOM)
		}
	})
	run("tries every way out", func(t *testing.T) { // I2, I4
		n := c.start("connects-back")
		status, answer := c.ask(n, "POST", "/predict")
		if status != 200 || strings.TrimSpace(answer) != `{"interfaces":[],"connected":[],"writable":["/tmp"],"root":false}` {
			t.Errorf("%d %s", status, answer)
		}
		c.retire(n)
	})
	c.settled()
}

// post asks for work that the worker will not survive.
func (c *controller) post(n protocol.Number) {
	c.t.Helper()
	c.lab.Eventually("the worker takes its request", func() (bool, error) {
		conn, err := c.gen.Channel(c.t.Context(), n, purpose)
		if hostclient.IsCode(err, protocol.CodeNotConnectable) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\nx"))
		if err == nil {
			// Until it ends: a request whose caller left would be given up.
			err = conn.SetReadDeadline(time.Now().Add(wait))
		}
		if err == nil {
			var b [1]byte
			if n, _ := conn.Read(b[:]); n != 0 {
				c.t.Error("it answered")
			}
		}
		return err == nil, err
	})
}

// outside is a socket of the host that no worker may reach.
type outside struct {
	path     string
	accepted chan struct{}
}

func newOutside(t *testing.T) *outside {
	t.Helper()
	dir, err := os.MkdirTemp("", "qo")
	if err != nil {
		t.Fatal(err)
	}
	o := &outside{path: filepath.Join(dir, "app.sock"), accepted: make(chan struct{}, 1000)}
	l, err := net.Listen("unix", o.path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			o.accepted <- struct{}{}
			_ = conn.Close() // the finding is that it came
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-done
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return o
}

func (o *outside) connections() int { return len(o.accepted) }
