package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// childVerb is the first argument of this program as a child of itself.
const childVerb = "child"

// child is what children do; it returns their exit status.
func child(what string) int {
	switch what {
	case "sleep":
		signal.Ignore(syscall.SIGTERM)
		select {}
	case "die":
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			fmt.Fprintln(os.Stderr, "misbehave:", err)
		}
		select {}
	case "allocate":
		allocate()
	}
	return 2
}

// allocate takes memory and touches it until the kernel says no.
func allocate() {
	const step = 1 << 20
	var held [][]byte
	for {
		block := make([]byte, step)
		for i := 0; i < step; i += 4096 {
			block[i] = 1
		}
		held = append(held, block)
		if len(held) == 1<<20 {
			return // a terabyte: there is no limit here
		}
	}
}

func self(what string) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := exec.Command(program, childVerb, what)
	command.Stderr = os.Stderr
	return command, nil
}

func children(ctx context.Context, o options, l net.Listener) error {
	return serve(ctx, l, func(context.Context, []byte) (any, error) {
		started := 0
		for range o.count {
			command, err := self("sleep")
			if err != nil {
				return nil, err
			}
			if err := command.Start(); err != nil {
				break // the limit of processes: as many as fit
			}
			started++
		}
		return map[string]int{"children": started}, nil
	})
}

// childEnd is how a child ended, as its parent saw it.
type childEnd struct {
	Signal int `json:"signal"` // 0: none
	Status int `json:"status"`
}

func runChild(what string) (childEnd, error) {
	command, err := self(what)
	if err != nil {
		return childEnd{}, err
	}
	err = command.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if err != nil && !ok {
		return childEnd{}, err
	}
	if ok {
		if status, isStatus := exit.Sys().(syscall.WaitStatus); isStatus && status.Signaled() {
			return childEnd{Signal: int(status.Signal()), Status: -1}, nil
		}
		return childEnd{Status: exit.ExitCode()}, nil
	}
	return childEnd{}, nil
}

func childKilled(ctx context.Context, _ options, l net.Listener) error {
	return serve(ctx, l, func(context.Context, []byte) (any, error) { return runChild("die") })
}

func childOOM(ctx context.Context, _ options, l net.Listener) error {
	return serve(ctx, l, func(context.Context, []byte) (any, error) { return runChild("allocate") })
}

// childOOMEnd exits with 0 after its child was killed: the exit status then
// says nothing of what happened.
func childOOMEnd(ctx context.Context, _ options, l net.Listener) error {
	return serve(ctx, l, func(context.Context, []byte) (any, error) {
		if _, err := runChild("allocate"); err != nil {
			return nil, err
		}
		os.Exit(0)
		return nil, nil
	})
}

func ownOOM(ctx context.Context, _ options, l net.Listener) error {
	return serve(ctx, l, func(context.Context, []byte) (any, error) {
		allocate()
		return nil, errors.New("no limit was met")
	})
}
