package hostagent

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// lockState lets one process at a time use the state directory: the agent,
// init, or the abandonment of a generation, whichever files are in it. The lock
// goes with the process however that ends.
func lockState(c Config) (io.Closer, error) {
	d, err := os.Open(c.StateDir)
	if err != nil {
		return nil, fmt.Errorf("state_dir: %w", err)
	}
	for {
		err = unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		return d, nil
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("state_dir %s is in use by another hostagent: stop that agent first", c.StateDir)
	}
	return nil, errors.Join(err, d.Close())
}
