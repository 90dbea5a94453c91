package worker

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/quittance/quittance/protocol"
)

// MaxReadyBody bounds one answer to a ready poll.
const MaxReadyBody = 64 << 10

// errNotReady is the cause of the ready rule's own timer.
var errNotReady = errors.New("the ready rule's timeout passed")

// Ready applies a profile's ready rule until it holds. The rule's timeout
// counts from the call, without what the reports take. Where the worker ends first, or the rule does not hold
// in time, the error is a *[Failure] of class unavailable.
func Ready(ctx context.Context, dial Dialer, rule protocol.ReadyRule, report Report) error {
	timed, report, end := allowed(ctx, time.Duration(rule.TimeoutMillis)*time.Millisecond, errNotReady, report)
	defer end()
	poll := newPoller(dial, rule)
	defer poll.close()

	said := ""
	last := errors.New("no poll was finished")
	for {
		condition, err := poll.once(timed)
		if err == nil {
			return nil
		}
		if stopped := context.Cause(ctx); stopped != nil {
			return stopped
		}
		if errors.Is(err, ErrGone) {
			return fail(Unavailable, err, "the worker ended before it was ready")
		}
		if timed.Err() == nil {
			last = err
		}
		if condition != said {
			if err := report(ctx, condition); err != nil {
				return err
			}
			said = condition
		}
		select {
		case <-timed.Done():
			if stopped := context.Cause(ctx); stopped != nil {
				return stopped
			}
			return fail(Unavailable, last, "the worker was not ready within %d ms", rule.TimeoutMillis)
		case <-time.After(time.Duration(rule.IntervalMillis) * time.Millisecond):
		}
	}
}

// poller asks over one kept-alive channel while it lasts.
type poller struct {
	dial      Dialer
	rule      protocol.ReadyRule
	transport *http.Transport
}

func newPoller(dial Dialer, rule protocol.ReadyRule) *poller {
	p := &poller{dial: dial, rule: rule}
	p.transport = &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial.Channel(ctx) },
		MaxConnsPerHost:        1,
		MaxIdleConnsPerHost:    1,
		DisableCompression:     true,
		MaxResponseHeaderBytes: protocol.MaxHeaderBytes,
	}
	return p
}

func (p *poller) close() { p.transport.CloseIdleConnections() }

// pollTimeout bounds one poll, so that a worker that accepts and says nothing
// is asked again over a new channel.
const pollTimeout = 5 * time.Second

// once polls; a nil error means ready. The condition is what the user may be
// told while it is not.
func (p *poller) once(ctx context.Context) (condition string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	if p.rule.Connect {
		conn, err := p.dial.Channel(ctx)
		if err != nil {
			return ConditionStarting, err
		}
		return "", conn.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+p.rule.HTTP, nil)
	if err != nil {
		return ConditionStarting, err
	}
	resp, err := p.transport.RoundTrip(req)
	if err != nil {
		return ConditionStarting, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, MaxReadyBody+1))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return ConditionLoading, err
	}
	if len(body) > MaxReadyBody {
		return ConditionLoading, fail(Protocol, nil, "the answer to a ready poll is longer than %d bytes", MaxReadyBody)
	}
	if resp.StatusCode != p.rule.Status {
		return ConditionLoading, fail(Unavailable, nil, "the ready path answers with status %d", resp.StatusCode)
	}
	if p.rule.JSONPointer != "" && !pointerEquals(body, p.rule.JSONPointer, p.rule.JSONValue) {
		return ConditionLoading, fail(Unavailable, nil, "the ready answer's %s is not the value that means ready", p.rule.JSONPointer)
	}
	return "", nil
}

// pointerEquals follows a JSON pointer of object members and compares the
// string found there.
func pointerEquals(document []byte, pointer, want string) bool {
	var v any
	if err := json.Unmarshal(document, &v); err != nil {
		return false
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		object, ok := v.(map[string]any)
		if !ok {
			return false
		}
		v = object[strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")]
	}
	switch got := v.(type) {
	case string:
		return got == want
	case bool:
		return (got && want == "true") || (!got && want == "false")
	}
	return false
}
