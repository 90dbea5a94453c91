// Command worker is what the agent's lane tests run inside containers: one
// static program, one behaviour per argument. With get it is a client of the
// private socket instead, for tests that need another user.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		os.Exit(64)
	}
	args := append(os.Args[2:], "", "")
	switch os.Args[1] {
	case "serve": // ends with 3 at SIGTERM
		endAtTerm()
		serve()
	case "exit": // CODE
		fmt.Println("exiting")
		os.Exit(number(args[0]))
	case "stubborn": // serves and ignores SIGTERM
		signal.Ignore(syscall.SIGTERM)
		serve()
	case "eat": // MIB: touches that much memory at once
		eat(number(args[0]))
		endAtTerm()
		serve()
	case "parent": // MIB: a child eats, this one serves on whatever becomes of it
		child := exec.Command("/proc/self/exe", "eat", args[0])
		if err := child.Start(); err != nil {
			fail(err)
		}
		go func() { fmt.Println("child ended:", child.Wait()) }()
		endAtTerm()
		serve()
	case "get": // SOCKET PATH: prints status and body
		get(args[0], args[1])
	default:
		os.Exit(64)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		fail(err)
	}
	return n
}

func endAtTerm() {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	go func() {
		<-terminated
		os.Exit(3)
	}()
}

// serve answers /health with READY on the loopback and echoes every body.
func serve() {
	fmt.Println("serving")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := io.WriteString(w, `{"status":"READY"}`); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(w, r.Body); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
	fail(http.ListenAndServe("127.0.0.1:8080", mux))
}

// eaten keeps the memory from being freed.
var eaten [][]byte

func eat(mebibytes int) {
	for range mebibytes {
		block := make([]byte, 1<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		eaten = append(eaten, block)
	}
}

func get(socket, path string) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	answer, err := client.Get("http://agent" + path)
	if err != nil {
		fail(err)
	}
	body, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		fail(err)
	}
	fmt.Println(answer.StatusCode)
	fmt.Println(string(body))
}
