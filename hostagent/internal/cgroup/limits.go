package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/quittance/quittance/protocol"
)

// cpuPeriodMicros is the kernel's default scheduling period.
const cpuPeriodMicros = 100_000

// CPUQuota is a cpu limit as quota and period in microseconds.
func CPUQuota(millis int64) (quota int64, period uint64) {
	return millis * cpuPeriodMicros / 1000, cpuPeriodMicros
}

// countsSwap looks for the kernel's swap accounting in the root, where every
// control file that a group will have is present.
func (m *Manager) countsSwap() (bool, error) {
	name := "memory.memsw.limit_in_bytes"
	if m.mode == protocol.CgroupV2 {
		name = "memory.swap.max"
	}
	_, err := os.Stat(filepath.Join(m.memory.mount, m.root, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cgroup: %w", err)
	}
	return true, nil
}

// setLimits writes the limits of one directory; killGroup only where it is
// meant for this level.
func (m *Manager) setLimits(h hierarchy, dir string, l Limits, killGroup bool) error {
	if m.mode == protocol.CgroupV2 {
		return m.setLimitsV2(dir, l, killGroup)
	}
	if h.has("memory") {
		if err := m.setMemoryV1(dir, l); err != nil {
			return err
		}
	}
	if h.has("pids") {
		if err := writeControl(filepath.Join(dir, "pids.max"), strconv.FormatInt(l.PIDs, 10)); err != nil {
			return err
		}
	}
	if h.has("cpu") && l.CPUMillis > 0 {
		quota, period := CPUQuota(l.CPUMillis)
		if err := writeControl(filepath.Join(dir, "cpu.cfs_period_us"), strconv.FormatUint(period, 10)); err != nil {
			return err
		}
		return writeControl(filepath.Join(dir, "cpu.cfs_quota_us"), strconv.FormatInt(quota, 10))
	}
	return nil
}

// setMemoryV1 keeps the kernel's rule that memsw is never below memory at any
// moment: memsw first when raising, last when lowering.
func (m *Manager) setMemoryV1(dir string, l Limits) error {
	memory := func() error {
		return writeControl(filepath.Join(dir, "memory.limit_in_bytes"), strconv.FormatInt(l.MemoryBytes, 10))
	}
	if !m.swap {
		return memory()
	}
	file := filepath.Join(dir, "memory.memsw.limit_in_bytes")
	both := l.MemoryBytes + l.SwapBytes
	memsw := func() error { return writeControl(file, strconv.FormatInt(both, 10)) }
	now, err := readInt(file)
	if err != nil {
		return err
	}
	order := []func() error{memory, memsw}
	if both > now {
		order = []func() error{memsw, memory}
	}
	for _, write := range order {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) setLimitsV2(dir string, l Limits, killGroup bool) error {
	type control struct{ name, value string }
	controls := []control{
		{"memory.max", strconv.FormatInt(l.MemoryBytes, 10)},
		{"pids.max", strconv.FormatInt(l.PIDs, 10)},
	}
	if m.swap {
		controls = append(controls, control{"memory.swap.max", strconv.FormatInt(l.SwapBytes, 10)})
	}
	if l.CPUMillis > 0 {
		quota, period := CPUQuota(l.CPUMillis)
		controls = append(controls, control{"cpu.max", fmt.Sprintf("%d %d", quota, period)})
	}
	if killGroup {
		controls = append(controls, control{"memory.oom.group", "1"})
	}
	for _, c := range controls {
		if err := writeControl(filepath.Join(dir, c.name), c.value); err != nil {
			return err
		}
	}
	return nil
}
