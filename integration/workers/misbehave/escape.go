package main

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// escapes are the ways out that worked. In a worker's container all of it is
// empty: nothing but loopback, no socket, nothing to write, no capability.
type escapes struct {
	Interfaces []string `json:"interfaces"` // other than loopback
	Connected  []string `json:"connected"`  // addresses and sockets that answered
	Writable   []string `json:"writable"`   // directories of the image that could be written
	Root       bool     `json:"root"`       // became user 0
}

// targets are addresses that a container should never reach.
var targets = []string{"169.254.169.254:80", "10.0.0.1:22", "172.17.0.1:2375", "192.168.0.1:80", "1.1.1.1:53"}

func connectsBack(ctx context.Context, _ options, l net.Listener) error {
	return serve(ctx, l, func(ctx context.Context, _ []byte) (any, error) { return tryEscapes(ctx, "/", targets) })
}

// tryEscapes tries each way out below root and to the given addresses.
func tryEscapes(ctx context.Context, root string, addresses []string) (escapes, error) {
	found := escapes{Interfaces: []string{}, Connected: []string{}, Writable: []string{}}
	interfaces, err := net.Interfaces()
	if err != nil {
		return found, err
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
			found.Interfaces = append(found.Interfaces, i.Name)
		}
	}
	dialer := net.Dialer{Timeout: time.Second}
	for _, address := range addresses {
		if conn, err := dialer.DialContext(ctx, "tcp", address); err == nil {
			found.Connected = append(found.Connected, address)
			if err := conn.Close(); err != nil {
				return found, err
			}
		}
	}
	for _, socket := range sockets(root) {
		if conn, err := dialer.DialContext(ctx, "unix", socket); err == nil {
			found.Connected = append(found.Connected, socket)
			if err := conn.Close(); err != nil {
				return found, err
			}
		}
	}
	for _, dir := range []string{"", "bin", "etc", "usr", "usr/bin", "var", "tmp", "sys/fs/cgroup", "proc/sys/kernel"} {
		path := filepath.Join(root, dir, ".misbehave")
		if f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600); err == nil {
			found.Writable = append(found.Writable, filepath.Join(root, dir))
			if err := f.Close(); err != nil {
				return found, err
			}
			if err := os.Remove(path); err != nil {
				return found, err
			}
		}
	}
	found.Root = os.Getuid() == 0 || syscall.Setuid(0) == nil
	return found, nil
}

// sockets lists Unix sockets in the usual places.
func sockets(root string) []string {
	var list []string
	for _, dir := range []string{"run", "var/run", "tmp"} {
		// Whatever cannot be read cannot be connected to either.
		_ = filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type()&fs.ModeSocket != 0 {
				list = append(list, path)
			}
			return nil
		})
	}
	return list
}
