package words

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/quittance/quittance/protocol"
)

// Receipt says in a few words what a receipt records. The receipt was decoded
// strictly, so its body has its kind's form; of a kind that this program does
// not know it says only that.
func Receipt(r protocol.Receipt) string {
	switch r.Kind {
	case protocol.KindGenesis:
		return of(r, genesis)
	case protocol.KindAgentStarted:
		return of(r, func(b protocol.AgentStartedBody) string {
			return "agent " + b.Versions.Agent + ", boot " + short(string(b.BootID))
		})
	case protocol.KindAccepted:
		return of(r, accepted)
	case protocol.KindStarted:
		return of(r, func(b protocol.StartedBody) string {
			return fmt.Sprintf("pid %d, created in %s, started in %s", b.PID, Millis(b.Durations.CreateMillis), Millis(b.Durations.StartMillis))
		})
	case protocol.KindOOMObserved:
		return of(r, func(b protocol.OOMObservedBody) string { return Counters(b.Counters) + suppressed(b.Suppressed) })
	case protocol.KindExited:
		return of(r, func(b protocol.ExitedBody) string {
			return Exit(b.Exit) + ", OOM " + oomShort(b.OOM) + peakShort(b.Peaks)
		})
	case protocol.KindStuck:
		return of(r, func(b protocol.StuckBody) string { return Stuck(b) + suppressed(b.Suppressed) })
	case protocol.KindUnstuck:
		return of(r, func(b protocol.UnstuckBody) string { return "after " + Millis(b.StuckMillis) })
	case protocol.KindRetired:
		return of(r, retired)
	case protocol.KindConsumed:
		return of(r, func(b protocol.ConsumedBody) string { return "receipt " + strconv.FormatInt(int64(b.RetiredIndex), 10) })
	case protocol.KindReleased:
		return of(r, released)
	case protocol.KindDrained, protocol.KindUndrained:
		return of(r, func(b protocol.DrainBody) string { return "by uid " + strconv.FormatInt(b.UID, 10) })
	case protocol.KindOwnerChanged:
		return of(r, func(b protocol.OwnerChangedBody) string {
			from := "nobody"
			if b.From != nil {
				from = short(string(*b.From))
			}
			return fmt.Sprintf("from %s to %s by uid %d", from, short(string(b.To)), b.UID)
		})
	}
	return "a kind that this version does not know"
}

func of[T any](r protocol.Receipt, say func(T) string) string {
	body, err := protocol.BodyOf[T](r)
	if err != nil {
		return "unreadable: " + err.Error()
	}
	return say(body)
}

func genesis(b protocol.GenesisBody) string {
	text := "agent " + b.Versions.Agent + ", boot " + short(string(b.BootID))
	if b.Abandoned != nil {
		text += fmt.Sprintf(", after generation %s was abandoned", short(string(b.Abandoned.Generation)))
		if b.Abandoned.Index != nil {
			text += fmt.Sprintf(" at receipt %d", *b.Abandoned.Index)
		}
		for _, also := range b.Abandoned.Also {
			text += ", as was " + short(string(also))
		}
	}
	return text
}

func accepted(b protocol.AcceptedBody) string {
	if b.Profile == nil {
		return "burnt for " + b.Purpose
	}
	text := *b.Profile + " for " + b.Purpose
	if b.Limits != nil {
		text += ", " + Bytes(b.Limits.MemoryBytes)
	}
	for _, d := range protocol.DistinctDevices(b.Devices) {
		text += ", " + d.Name
	}
	return text
}

func retired(b protocol.RetiredBody) string {
	text := string(b.Reason)
	if b.RequestedBy != nil {
		text += " by " + *b.RequestedBy
	}
	if !b.Dispatched {
		text += ", never dispatched"
	} else {
		text += ", OOM " + oomShort(b.OOM) + ", removed in " + Millis(b.Durations.RemoveMillis)
	}
	if b.Error != "" {
		text += ": " + b.Error
	}
	return text
}

func released(b protocol.ReleasedBody) string {
	text := "up to " + b.Frontier.String()
	if len(b.Except) > 0 {
		carried := make([]string, len(b.Except))
		for i, n := range b.Except {
			carried[i] = n.String()
		}
		text += ", stuck and carried along: " + strings.Join(carried, ", ")
	}
	return text
}

// Stuck says what was seen of a container that does not go.
func Stuck(b protocol.StuckBody) string {
	text := "at " + b.Step + " for " + Millis(b.SinceMillis)
	if b.ProcessState != "" {
		text += ", process state " + b.ProcessState
	}
	if b.WaitChannel != "" {
		text += " in " + b.WaitChannel
	}
	if b.Detail != "" {
		text += ": " + b.Detail
	}
	return text
}

func suppressed(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d more not recorded", n)
}

func oomShort(o protocol.OOM) string {
	if o.Scope != nil {
		return string(o.Verdict) + "/" + string(*o.Scope)
	}
	return string(o.Verdict)
}

func peakShort(p protocol.Peaks) string {
	if p.MemoryBytes == nil {
		return ""
	}
	return ", peak " + Bytes(*p.MemoryBytes)
}

// short is enough of an identity to tell two apart.
func short(id string) string { return id[:min(8, len(id))] }
