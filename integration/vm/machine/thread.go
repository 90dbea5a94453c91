package machine

import (
	"os/exec"
	"runtime"
)

// startOnOwnThread starts the emulator from a thread that lives as long as the
// emulator: a parent-death signal comes when the starting thread ends, and Go
// ends threads.
func startOnOwnThread(cmd *exec.Cmd, m *Machine) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			m.err = cmd.Wait()
			close(m.over)
		}
	}()
	return <-started
}
