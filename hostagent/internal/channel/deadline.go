package channel

import "time"

// unixEpoch as a deadline has always passed; noDeadline never does.
var (
	unixEpoch  = time.Unix(1, 0)
	noDeadline time.Time
)
