package provider

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// success reports whether a status is that of a successful answer.
func success(status int) bool { return status == http.StatusOK || status == http.StatusCreated }

// take keeps of an answer what is kept of every received head.
func (f *Failure) take(got received) {
	if got.status == 0 {
		return
	}
	f.Status = got.status
	if id := got.header.Get(api.HeaderRequestID); attempt.ValidRequestID(id) {
		f.RequestID = id
	}
	if date, err := http.ParseTime(got.header.Get("Date")); err == nil {
		f.Date = date
	}
	f.Reply = attempt.Reply{Status: got.status, RequestID: f.RequestID, Body: got.body[:min(len(got.body), attempt.MaxReplyBytes)]}
}

// repeatsServerError are the operations whose exact bytes may be sent again
// after a 500: their answer says what is true, whoever did it.
var repeatsServerError = []string{api.RouteStart.Name, api.RouteComplete.Name, api.RouteFail.Name, api.RouteReceipts.Name}

// classify turns a whole answer into a success or a failure.
func (c *Client) classify(f *Failure, route api.Route, got received) (*answer, *Failure) {
	f.Class, f.Disposition = ClassMalformed, protocol.Unknown
	if f = c.refine(f, route, got); f.Class != ClassMalformed {
		return nil, f
	}
	if !success(got.status) {
		return nil, c.problem(f, got)
	}
	if err := checkHead(got.header, api.ContentJSON); err != nil {
		f.Cause = err
		return nil, f
	}
	return &answer{f.Reply, got.body, *f}, nil
}

// refine names what an answer means by its status and topology alone; where
// they say nothing the class stays as it is.
func (c *Client) refine(f *Failure, route api.Route, got received) *Failure {
	topology := got.header.Values(api.HeaderTopology)
	gateway := got.status >= 502 && got.status <= 504
	switch {
	case len(topology) > 1 || len(topology) == 1 && topology[0] != c.cfg.Topology,
		len(topology) == 0 && !gateway && got.status != http.StatusInternalServerError:
		f.Class, f.Repeat = ClassTopology, false
		f.Cause = fmt.Errorf("the answer is not of topology %q: check the origin", c.cfg.Topology)
	case gateway:
		f.Class, f.Repeat = ClassUnavailable, route.Name != api.RouteGrant.Name
	case got.status == http.StatusInternalServerError:
		f.Class, f.Repeat = ClassServer, slices.Contains(repeatsServerError, route.Name)
	}
	return f
}

// problem reads an unsuccessful answer of our own service.
func (c *Client) problem(f *Failure, got received) *Failure {
	if err := checkHead(got.header, api.ContentProblem); err != nil {
		f.Cause = err
		return f
	}
	var p api.Problem
	if err := api.Decode(got.body, maxProblemBytes, &p); err != nil {
		f.Cause = fmt.Errorf("problem: %w", ownNames(err))
		return f
	}
	if p.Status != got.status || !slices.Contains(api.Codes(), p.Code) || p.Code.Status() != got.status ||
		p.Effect != api.EffectNone && p.Effect != api.EffectUnknown {
		f.Cause = errors.New("problem: code, status and effect do not belong together")
		return f
	}
	f.Code = p.Code
	if p.Effect == api.EffectUnknown {
		f.Class = ClassServer
		return f
	}
	f.Class, f.Disposition = ClassRefused, protocol.Refused
	switch p.Code {
	case api.CodeClockSkew:
		if p.ServiceTime != nil {
			c.cfg.Signer.Learn(p.ServiceTime.Time())
			f.Class, f.Repeat = ClassClockSkew, true
		}
	case api.CodeIdentityInUse:
		if p.Store != nil && p.Store.Valid() {
			f.Owner = *p.Store
		}
	case api.CodeTimeout, api.CodeLimitReached, api.CodeNoSpace:
		f.Class, f.Repeat = ClassBusy, true
	}
	return f
}

var memberForm = regexp.MustCompile(`^[a-z0-9_/]{0,128}$`)

// ownNames keeps from a message the name of a member that is none of ours: it
// is the peer's text.
func ownNames(err error) error {
	d, ok := errors.AsType[*protocol.DecodeError](err)
	if !ok || memberForm.MatchString(d.Field) {
		return err
	}
	return &protocol.DecodeError{Field: "a member", Reason: d.Reason}
}

// checkHead refuses a head that is not that of a plain JSON answer.
func checkHead(h http.Header, contentType string) error {
	switch {
	case len(h.Values("Content-Type")) != 1 || h.Get("Content-Type") != contentType:
		return fmt.Errorf("the answer's Content-Type is not %s", contentType)
	case len(h.Values("Content-Encoding")) != 0:
		return errors.New("the answer has a Content-Encoding")
	}
	return nil
}
