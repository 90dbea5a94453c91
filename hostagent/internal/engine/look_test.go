package engine

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// claimsMap is the kernel's struct prctl_mm_map: what a process says of its own
// memory.
type claimsMap struct {
	startCode, endCode, startData, endData, startBrk, brk, startStack uint64
	argStart, argEnd, envStart, envEnd                                uint64
	auxv                                                              uint64
	auxvSize                                                          uint32
	exe                                                               int32
}

// claim has this process say that its command line is of so many bytes, which
// needs no right at all.
func claim(size uint64) error {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	field := func(n int) uint64 { // as in proc(5)
		value, parseErr := strconv.ParseUint(string(fields[n-3]), 10, 64)
		err = errors.Join(err, parseErr)
		return value
	}
	brk, _, _ := unix.RawSyscall(unix.SYS_BRK, 0, 0, 0)
	m := claimsMap{
		startCode: field(26), endCode: field(27), startData: field(45), endData: field(46), startBrk: field(47), brk: uint64(brk),
		startStack: field(28), argStart: field(48), argEnd: field(48), envStart: field(50), envEnd: field(51), exe: -1,
	}
	if err != nil {
		return err
	}
	if size > 0 {
		memory, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
		if err != nil {
			return err
		}
		m.argStart = uint64(uintptr(unsafe.Pointer(&memory[0])))
		m.argEnd = m.argStart + size
	}
	return unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_MAP, uintptr(unsafe.Pointer(&m)), unsafe.Sizeof(m), 0)
}

// I33: what a process says of itself is bounded before it is read, and those
// that show nothing hold a look at all processes up together, not one by one.
func TestLookAtHostileProcesses(t *testing.T) {
	const child, claimed = "QUITTANCE_LOOK_CHILD", 64 << 20
	if size := os.Getenv(child); size != "" {
		n, err := strconv.ParseUint(size, 10, 64)
		if err == nil {
			err = claim(n)
		}
		if err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(7)
		}
		os.Stdout.WriteString("ready")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test lets go
		os.Exit(0)
	}
	begin := func(size int) string {
		t.Helper()
		cmd := exec.Command(os.Args[0], "-test.run=^TestLookAtHostileProcesses$")
		cmd.Env = append(os.Environ(), child+"="+strconv.Itoa(size))
		var said bytes.Buffer
		cmd.Stderr = &said
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, readErr := io.ReadFull(stdout, make([]byte, len("ready")))
		t.Cleanup(func() {
			if err := errors.Join(stdin.Close(), cmd.Wait()); err != nil && readErr == nil {
				t.Error(err)
			}
		})
		if readErr != nil {
			end := cmd.Wait()
			if bytes.Contains(said.Bytes(), []byte(unix.EINVAL.Error())) {
				t.Skip("needs a kernel with CONFIG_CHECKPOINT_RESTORE: without it no process can say such a thing")
			}
			t.Fatalf("%v: %s", end, &said)
		}
		return strconv.Itoa(cmd.Process.Pid)
	}
	large, nothing := begin(claimed), begin(0)

	args, err := command(large)
	if err != nil {
		t.Fatal(err)
	}
	length := 0
	for _, arg := range args {
		length += len(arg) + 1
	}
	if length == 0 || length > programLimit+1 {
		t.Errorf("a command line of %d bytes was read", length)
	}
	if _, err := command(nothing); !errors.Is(err, errBegins) {
		t.Errorf("a process without a command line: %v", err)
	}

	// Twice not yet, then seen; never; and at once, as all others.
	late, never, self := large, strconv.Itoa(os.Getppid()), strconv.Itoa(os.Getpid())
	seen := map[string]int{}
	err = eachCommand(func(pid string, _ []string) error {
		seen[pid]++
		if pid == late && seen[pid] < 3 || pid == never {
			return errBegins
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := []int{seen[late], seen[never], seen[self], seen[nothing]}, []int{3, 6, 1, 0}; !slices.Equal(got, want) {
		t.Errorf("looked at %v times, want %v", got, want)
	}
}
