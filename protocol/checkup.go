package protocol

// Checkup is what `hostagent doctor --json` prints and `agentctl doctor` shows.
type Checkup struct {
	Checks []Check `json:"checks"`
}

// Check is one thing that was looked at.
type Check struct {
	Name   string     `json:"name"` // stable, for programs
	State  CheckState `json:"state"`
	Found  string     `json:"found"`  // for people
	Remedy string     `json:"remedy"` // what to do; "" where it is fine
}

// CheckState is a check's verdict.
type CheckState string

// The verdicts, from best to worst.
const (
	CheckFine    CheckState = "fine"
	CheckWarning CheckState = "warning" // it works; it may not when it matters
	CheckFailed  CheckState = "failed"  // the agent cannot do its work, or somebody else can
)

// Failed reports whether a check failed.
func (c Checkup) Failed() bool {
	for _, check := range c.Checks {
		if check.State == CheckFailed {
			return true
		}
	}
	return false
}
