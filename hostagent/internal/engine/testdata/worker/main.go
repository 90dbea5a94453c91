// The worker of the engine's tests: one static program, one behaviour per
// argument.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		os.Exit(64)
	}
	args := append(os.Args[2:], "", "")
	switch os.Args[1] {
	case "echo": // ADDRESS: tcp host:port or an absolute path
		echo(args[0])
	case "exit": // CODE
		code, _ := strconv.Atoi(args[0])
		fmt.Println("exiting")
		os.Exit(code)
	case "sleep":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("sleeping")
		rest()
	case "term": // ends with 3 at SIGTERM
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("waiting")
		<-c
		os.Exit(3)
	case "eat": // MIB: touches that much memory, then serves on ADDRESS
		eat(args[0])
		echo("127.0.0.1:8080")
	case "eat-when-told": // MIB: the same after one connection came
		l, err := net.Listen("tcp", "127.0.0.1:8080")
		check(err)
		_, err = l.Accept()
		check(err)
		eat(args[0])
		rest()
	case "child-eats": // MIB: a child is killed, this one serves on
		go func() {
			cmd := exec.Command("/worker", "eat", args[0])
			cmd.Env = append(os.Environ(), "EATER=1")
			err := cmd.Run()
			fmt.Println("child:", err)
		}()
		echo("127.0.0.1:8080")
	case "print": // N bytes of pattern, then sleep
		n, _ := strconv.Atoi(args[0])
		line := strings.Repeat("0123456789abcde\n", 256)
		for n > 0 {
			w, err := os.Stdout.WriteString(line[:min(n, len(line))])
			check(err)
			n -= w
		}
		fmt.Print("END")
		rest()
	case "fork": // N children that sleep and ignore SIGTERM
		n, _ := strconv.Atoi(args[0])
		for range n {
			check(exec.Command("/worker", "sleep").Start())
		}
		fmt.Println("forked")
		echo("127.0.0.1:8080")
	case "links": // a symbolic link to a path, then a listener at /tmp/own.sock
		check(os.Symlink(args[0], "/tmp/link.sock"))
		check(os.WriteFile("/tmp/file", nil, 0o600))
		check(os.Symlink("/tmp", "/tmp/dir"))
		echo("/tmp/own.sock")
	case "show": // the world as the worker sees it
		show()
		rest()
	}
	os.Exit(64)
}

// rest stays until it is killed; an empty select would be a deadlock to Go.
func rest() { time.Sleep(time.Hour) }

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(65)
	}
}

func echo(address string) {
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	l, err := net.Listen(network, address)
	check(err)
	fmt.Println("listening")
	for {
		c, err := l.Accept()
		check(err)
		go func() {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}()
	}
}

// kept is reachable, so that what was eaten stays.
var kept [][]byte

func eat(mib string) {
	n, _ := strconv.Atoi(mib)
	for range n {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(i)
		}
		kept = append(kept, b)
		if os.Getenv("EATER") != "" {
			// The kernel picks the largest; be it.
			check(os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0))
		}
		time.Sleep(time.Millisecond)
	}
}

func show() {
	for _, name := range []string{"/proc/self/status", "/proc/self/limits", "/proc/self/mountinfo", "/proc/self/oom_score_adj", "/proc/net/dev"} {
		text, err := os.ReadFile(name)
		fmt.Printf("== %s\n%s%v\n", name, text, err)
	}
	fmt.Printf("== env\n%s\n", strings.Join(os.Environ(), "\n"))
	fmt.Printf("== root write %v\n", os.WriteFile("/x", nil, 0o600))
	fmt.Printf("== sys write %v\n", os.WriteFile("/proc/sys/kernel/core_pattern", nil, 0o600))
	fmt.Println("== done")
}
