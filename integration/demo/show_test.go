package main

import (
	"strings"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

func TestShow(t *testing.T) {
	var b strings.Builder
	s := newShow(&b, 2)
	s.step("First")
	s.command("agentctl", "jobs", "submit", "it's here", "")
	s.output("a\nb\nc\n", 2)
	s.fact("%d checked", 3)
	want := "\n== 1/2  First  [0s]\n   $ agentctl jobs submit 'it'\\''s here' ''\n     a\n     b\n     … 1 more lines\n   ok  3 checked\n"
	if b.String() != want {
		t.Errorf("got %q", b.String())
	}
}

// The words that were read are counted where the repeated text has them.
func TestInOrder(t *testing.T) {
	if got := inOrder([]string{"a", "b", "a", "x"}, "a b"); got != 3 {
		t.Errorf("%d", got)
	}
}

func TestActiveSnapshots(t *testing.T) {
	listing := "KEY    PARENT    KIND\nsha256:1 Committed\nq-1 sha256:1 Active\nview sha256:1 View\n"
	if got := activeSnapshots(listing); got != "q-1 view" {
		t.Errorf("%q", got)
	}
}

// The demonstration accepts no other end of the killed job than the kernel's
// kill with its facts (I22, I24).
func TestCheckKilled(t *testing.T) {
	p := func(n int64) *int64 { return &n }
	scope := protocol.ScopeContainer
	good := func() api.Job {
		return api.Job{
			State: api.JobFailed, Failure: &api.FailureView{Code: api.FailWorkerOOM}, MemoryPeak: p(64 << 20), MemoryLimit: p(64 << 20),
			OOM: &protocol.OOM{Verdict: protocol.VerdictKilled, Scope: &scope, Counters: protocol.Counters{OOMKill: p(1)}},
		}
	}
	if err := checkKilled(good()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*api.Job){
		"finished":    func(j *api.Job) { j.State = api.JobFinished },
		"other cause": func(j *api.Job) { j.Failure.Code = api.FailWorkerLost },
		"no verdict":  func(j *api.Job) { j.OOM = nil },
		"unknown":     func(j *api.Job) { j.OOM.Verdict = protocol.VerdictUnknown },
		"host scope":  func(j *api.Job) { *j.OOM.Scope = protocol.ScopeHost },
		"no counter":  func(j *api.Job) { j.OOM.Counters.OOMKill = nil },
		"no peak":     func(j *api.Job) { j.MemoryPeak = nil },
		"low peak":    func(j *api.Job) { j.MemoryPeak = p(30 << 20) },
		"other limit": func(j *api.Job) { j.MemoryLimit = p(384 << 20) },
	} {
		job := good()
		scope = protocol.ScopeContainer
		change(&job)
		if checkKilled(job) == nil {
			t.Errorf("%s was accepted", name)
		}
		scope = protocol.ScopeContainer
	}
}
