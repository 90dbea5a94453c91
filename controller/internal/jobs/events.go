package jobs

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/quittance/quittance/controller/api"
)

// Times of an event stream. A client that was cut off resumes with
// Last-Event-ID, so a bound on one stream loses nothing.
const (
	pingInterval  = 15 * time.Second
	streamLimit   = 30 * time.Minute
	eventsAtOnce  = 100
	streamTimeout = 30 * time.Second // to write one batch
)

// streamEvents serves a job's history as server-sent events, then what happens
// next. Where history before the wished place is gone, an event of type gone
// says so before anything else (FR-25, I8).
func streamEvents(c *call) error {
	id, err := c.pathID("job", api.ValidJobID)
	if err != nil {
		return err
	}
	after := int64(0)
	if values := c.r.Header.Values(api.HeaderLastEventID); len(values) != 0 {
		after, err = strconv.ParseInt(values[0], 10, 64)
		if len(values) != 1 || err != nil || after < 0 || strconv.FormatInt(after, 10) != values[0] {
			return badRequest(api.HeaderLastEventID, "Last-Event-ID must be the index of an event that this service sent.")
		}
	}
	changed := c.s.store.Changed()
	events, gone, err := c.s.store.Events(c.r.Context(), c.who.Workspace, id, after, eventsAtOnce)
	if err != nil {
		return err
	}
	leave, err := c.s.waitingPlace()
	if err != nil {
		return err
	}
	defer leave()
	header := c.w.Header()
	header.Set("Content-Type", api.ContentEvents)
	header.Set("X-Accel-Buffering", "no")
	stream := &eventStream{w: c.w, control: http.NewResponseController(c.w)}
	if err := stream.send(events, gone); err != nil {
		return nil // the client went away
	}
	if gone != nil {
		after = gone.First - 1
	}
	limit := time.NewTimer(streamLimit)
	defer limit.Stop()
	ping := time.NewTicker(pingInterval)
	defer ping.Stop()
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		if len(events) > 0 {
			after = events[len(events)-1].Index
		}
		if len(events) < eventsAtOnce {
			select {
			case <-limit.C:
				return nil
			case <-c.s.closing.Done():
				return nil
			case <-c.r.Context().Done():
				return nil
			case <-ping.C:
				if stream.write(": ping\n\n") != nil {
					return nil
				}
				continue
			case <-changed:
			case <-look.C:
			}
		}
		changed = c.s.store.Changed()
		events, gone, err = c.s.store.Events(c.r.Context(), c.who.Workspace, id, after, eventsAtOnce)
		if err != nil {
			c.log(err)
			return nil // the status is out; the client resumes
		}
		if gone != nil {
			after = gone.First - 1
		}
		if stream.send(events, gone) != nil {
			return nil
		}
	}
}

// eventStream writes server-sent events.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func (s *eventStream) send(events []api.Event, gone *api.EventsGone) error {
	var b strings.Builder
	if gone != nil {
		fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", api.EventGone, api.Encode(gone))
	}
	for i := range events {
		fmt.Fprintf(&b, "id: %d\nevent: %s\ndata: %s\n\n", events[i].Index, events[i].Type, api.Encode(&events[i]))
	}
	return s.write(b.String())
}

// write sends text at once. Its first call sends the status too.
func (s *eventStream) write(text string) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(streamTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.control.Flush()
}
