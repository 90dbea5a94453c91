// Package words says in a few words what receipts, facts and sizes mean, for
// people.
//
// It owns the wording. It must not decide anything: every statement comes from
// a typed field of what it is given, none from text inside (I34).
package words

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/quittance/quittance/protocol"
)

// Bytes writes a size with at most one decimal, in binary units.
func Bytes(n int64) string {
	units := []string{"KiB", "MiB", "GiB", "TiB"}
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	value := float64(n) / 1024
	unit := 0
	for value >= 1024 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	return strings.TrimSuffix(strconv.FormatFloat(value, 'f', 1, 64), ".0") + " " + units[unit]
}

// Millis writes a duration given in milliseconds.
func Millis(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d >= time.Minute {
		d = d.Round(time.Second)
	}
	return d.String()
}

// Ago says how long before now at was, both by one machine's clock.
func Ago(at, now protocol.Timestamp) string {
	d := now.Time().Sub(at.Time())
	switch {
	case d < 0:
		return "at " + Time(at)
	case d < time.Second:
		return "just now"
	case d < 48*time.Hour:
		return d.Truncate(time.Second).String() + " ago"
	}
	return strconv.Itoa(int(d/(24*time.Hour))) + " days ago"
}

// Time writes a wall-clock time to the second, in UTC.
func Time(at protocol.Timestamp) string { return at.Time().Format("2006-01-02 15:04:05Z") }

// Limits writes what an allocation may use.
func Limits(l protocol.Limits) string {
	parts := []string{Bytes(l.MemoryBytes) + " memory"}
	if l.SwapBytes > 0 {
		parts = append(parts, Bytes(l.SwapBytes)+" swap")
	}
	if l.CPUMillis > 0 {
		parts = append(parts, CPUs(l.CPUMillis)+" CPUs")
	}
	return strings.Join(append(parts, strconv.FormatInt(l.PIDs, 10)+" processes"), ", ")
}

// CPUs writes thousandths of a core as cores.
func CPUs(millis int64) string { return strconv.FormatFloat(float64(millis)/1000, 'f', -1, 64) }

// Exit says how a first process ended and who saw it.
func Exit(e protocol.Exit) string {
	switch {
	case e.Code == nil && e.Source == protocol.ExitFromReboot:
		return "gone with the machine's restart"
	case e.Code == nil && e.Source == protocol.ExitFromNone:
		return "ended, seen by nobody"
	case e.Code == nil:
		return "ended, code unknown (seen by " + string(e.Source) + ")"
	case e.Signal != nil:
		return fmt.Sprintf("exit %d, signal %d (seen by %s)", *e.Code, *e.Signal, e.Source)
	}
	return fmt.Sprintf("exit %d (seen by %s)", *e.Code, e.Source)
}

// OOM says whether the kernel killed for memory, with whose limit and the
// counters that prove it.
func OOM(o protocol.OOM) string {
	text := string(o.Verdict)
	if o.Scope != nil {
		text += ", scope " + string(*o.Scope)
	}
	if counters := Counters(o.Counters); counters != "" {
		text += " (" + counters + "; " + string(o.Source) + ")"
	}
	return text
}

// Counters writes those that the kernel has.
func Counters(c protocol.Counters) string {
	var parts []string
	for _, counter := range []struct {
		name  string
		value *int64
	}{
		{"oom_kill", c.OOMKill}, {"oom", c.OOM}, {"oom_group_kill", c.OOMGroupKill}, {"max", c.Max}, {"failcnt", c.FailCnt},
	} {
		if counter.value != nil {
			parts = append(parts, fmt.Sprintf("%s %d", counter.name, *counter.value))
		}
	}
	return strings.Join(parts, ", ")
}

// Peak writes the highest memory against its limit; "" where there is none.
func Peak(peaks *protocol.Peaks, limits *protocol.Limits) string {
	if peaks == nil || peaks.MemoryBytes == nil {
		return ""
	}
	text := Bytes(*peaks.MemoryBytes)
	if limits != nil && limits.MemoryBytes > 0 {
		text += fmt.Sprintf(" of %s (%d %%)", Bytes(limits.MemoryBytes), *peaks.MemoryBytes*100/limits.MemoryBytes)
	}
	return text
}
