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
	"sync"
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
	case "thrash": // FILE: reads it again and again, however little fits into memory
		endAtTerm()
		go thrash(args[0])
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

// serve answers on the loopback: /health with READY, /echo with the body, /hold
// with the body once somebody posts to /finish, and /open with what opening the
// file that the body names came to.
func serve() {
	fmt.Println("serving")
	mux := http.NewServeMux()
	finished := make(chan struct{})
	finish := sync.OnceFunc(func() { close(finished) })
	mux.HandleFunc("POST /hold", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		select {
		case <-finished:
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		if _, err := w.Write(body); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
	mux.HandleFunc("POST /finish", func(http.ResponseWriter, *http.Request) { finish() })
	mux.HandleFunc("POST /open", func(w http.ResponseWriter, r *http.Request) {
		name, err := io.ReadAll(io.LimitReader(r.Body, 4<<10))
		if err == nil {
			err = opened(string(name))
		}
		text := "opened"
		if err != nil {
			text = err.Error()
		}
		if _, err := io.WriteString(w, text); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
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

// opened opens a file anew for reading and writing.
func opened(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// thrash reads a file to its end again and again.
func thrash(name string) {
	block := make([]byte, 1<<16)
	for {
		f, err := os.Open(name)
		if err != nil {
			fail(err)
		}
		for err == nil {
			_, err = f.Read(block)
		}
		if err := f.Close(); err != nil {
			fail(err)
		}
	}
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
