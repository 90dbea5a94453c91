package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mountsBelow says which of some paths have a mount below them, in this process's
// mount namespace.
func mountsBelow(paths []string) (map[string]bool, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	points, err := mountPointsOf(string(table))
	if err != nil {
		return nil, err
	}
	below := map[string]bool{}
	for _, path := range paths {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return nil, err
		}
		for _, point := range points {
			if strings.HasPrefix(point, strings.TrimSuffix(real, "/")+"/") {
				below[path] = true
			}
		}
	}
	return below, nil
}

// mountPointsOf reads the mount points out of proc_pid_mountinfo(5).
func mountPointsOf(table string) ([]string, error) {
	var points []string
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			return nil, fmt.Errorf("a mount table of another form: %q", line)
		}
		points = append(points, unescape(fields[4]))
	}
	return points, nil
}

// unescape replaces what the kernel writes as three octal digits: spaces, tabs,
// new lines and backslashes.
func unescape(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+4 <= len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}
