package devices

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

// Catalog looks at the spec directories. It keeps nothing between two looks:
// a spec is as good as what it says now.
type Catalog struct{ dirs []string }

// New makes a catalog of spec directories in ascending priority; none needs to
// exist.
func New(dirs []string) *Catalog { return &Catalog{dirs: slices.Clone(dirs)} }

// Device is one device that can be leased.
type Device struct {
	Kind string
	// Names are its fully qualified names. The first one is injected, the
	// others are aliases.
	Names []string
	// Nodes are the paths of its own device nodes on the host, sorted: its
	// identity. Other paths of the same nodes are among them.
	Nodes []string
	// Digest is of the spec file that defines it.
	Digest protocol.Digest
	// Fault is why its edits would fail now, with a remedy; "" if they would not.
	Fault string

	spec  *spec
	edits *specs.ContainerEdits // its own
	ids   []identity            // of its own nodes
}

// Problem is something about the specs that an operator should know.
type Problem struct {
	// Subject is a spec file, a spec directory or a device's name.
	Subject string
	Detail  string
	Remedy  string
	// Harmless says that nothing is wrong: the agent merely leases something
	// else, as the parts of a bundle.
	Harmless bool
}

// Found is what one look saw.
type Found struct {
	Devices  []Device // by kind and name
	Problems []Problem
	Specs    int // files that could be read
}

func (f *Found) problem(subject, remedy, format string, args ...any) {
	f.Problems = append(f.Problems, Problem{Subject: subject, Detail: fmt.Sprintf(format, args...), Remedy: remedy})
}

// Look reads every spec and checks every device. A spec that cannot be used
// hides no other one: it is among the problems. The paths of nodes that are held
// are added to those of the devices that they lead to, so that a card which is
// held stays so when its spec is written anew with other paths.
func (c *Catalog) Look(held ...string) Found {
	f := Found{Devices: []Device{}}
	var all []*spec
	for priority, dir := range c.dirs {
		all = append(all, f.readDir(dir, priority)...)
	}
	f.Specs = len(all)
	for _, devices := range f.defined(all) {
		f.group(devices)
	}
	slices.SortFunc(f.Devices, func(a, b Device) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), compareNames(a.Names[0], b.Names[0]))
	})
	if len(f.Devices) > maxDevices {
		f.problem("CDI", "remove specs that nobody needs", "%d devices are defined; the first %d are looked at", len(f.Devices), maxDevices)
		f.Devices = f.Devices[:maxDevices]
	}
	f.uniteNodes(held)
	f.preflight()
	f.noteShared()
	slices.SortFunc(f.Problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Subject, b.Subject), strings.Compare(a.Detail, b.Detail))
	})
	return f
}

func (f *Found) readDir(dir string, priority int) []*spec {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = checkAuthor(info)
	}
	if err == nil {
		err = checkWay(dir)
	}
	var entries []os.DirEntry
	if err == nil {
		entries, err = os.ReadDir(dir)
	}
	if err != nil {
		f.problem(dir, "make it a directory that only root can write", "%v", bare(err))
		return nil
	}
	var found []*spec
	for _, e := range entries {
		if !isSpecFile(e.Name()) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if len(found) == maxSpecFiles {
			f.problem(dir, "remove specs that nobody needs", "more than %d specs; the others are not read", maxSpecFiles)
			break
		}
		s, err := readSpec(path, priority)
		if err != nil {
			f.problem(path, "mend it, generate it anew, or remove it: its devices are not offered", "%v", bare(err))
			continue
		}
		found = append(found, s)
	}
	return found
}

// defined collects the devices of each kind. Where two specs define a name the
// one of higher priority wins; of equal priority neither does.
func (f *Found) defined(all []*spec) [][]Device {
	type entry struct {
		spec     *spec
		device   *specs.Device
		conflict string
	}
	byName := map[string]entry{}
	for _, s := range all {
		for i := range s.raw.Devices {
			d := &s.raw.Devices[i]
			name := s.raw.Kind + "=" + d.Name
			old, ok := byName[name]
			switch {
			case !ok || s.priority > old.spec.priority:
				byName[name] = entry{spec: s, device: d}
			case s.priority == old.spec.priority:
				old.conflict = s.path
				byName[name] = old
			}
		}
	}
	kinds := map[string][]Device{}
	for name, e := range byName {
		if e.conflict != "" {
			f.problem(name, "remove one of the two specs", "both %s and %s define it: it is not offered", e.spec.path, e.conflict)
			continue
		}
		d := Device{Kind: e.spec.raw.Kind, Names: []string{name}, Digest: e.spec.digest, spec: e.spec, edits: &e.device.ContainerEdits}
		for _, n := range d.edits.DeviceNodes {
			d.Nodes = append(d.Nodes, hostPath(n))
		}
		slices.Sort(d.Nodes)
		d.Nodes = slices.Compact(d.Nodes)
		d.ids = identities(d.Nodes)
		kinds[d.Kind] = append(kinds[d.Kind], d)
	}
	var out [][]Device
	for _, devices := range kinds {
		out = append(out, devices)
	}
	return out
}

// everything is the usual name of a bundle.
const everything = "all"

// group makes one device of all names with the same nodes, and leaves out what
// is never leased.
func (f *Found) group(devices []Device) {
	slices.SortFunc(devices, func(a, b Device) int { return compareNames(a.Names[0], b.Names[0]) })
	var cards []Device
	for _, d := range devices {
		i := slices.IndexFunc(cards, func(c Device) bool { return slices.Equal(c.ids, d.ids) })
		switch {
		case len(d.Nodes) == 0:
			f.problem(d.Names[0], "lease a device that has a node of its own", "it injects no device node, so it cannot be leased exclusively")
		case i < 0:
			cards = append(cards, d)
		default:
			cards[i].Names = append(cards[i].Names, d.Names...)
			cards[i].Nodes = append(cards[i].Nodes, d.Nodes...) // by other paths, perhaps
		}
	}
	for _, d := range cards {
		if j := slices.IndexFunc(cards, func(o Device) bool { return len(o.ids) < len(d.ids) && contains(d.ids, o.ids) }); j >= 0 {
			f.Problems = append(f.Problems, Problem{
				Subject: d.Names[0], Harmless: true,
				Detail: fmt.Sprintf("%s bundles %s and others, which are leased one by one", d.Names[0], cards[j].Names[0]), Remedy: "none needed",
			})
			continue
		}
		if d.Names[0] == d.Kind+"="+everything {
			f.problem(d.Names[0], "generate the spec with a name for each card", `it is called "all" and is the only name of its nodes: what it is cannot be told`)
			continue
		}
		f.Devices = append(f.Devices, d)
	}
}

// identity of a node: its number where it has one, else its path.
type identity struct {
	number
	path string
}

func identityOf(path string) identity {
	if n, ok := numberOf(path); ok {
		return identity{number: n}
	}
	return identity{path: path}
}

func identities(nodes []string) []identity {
	out := make([]identity, 0, len(nodes))
	for _, path := range nodes {
		out = append(out, identityOf(path))
	}
	slices.SortFunc(out, func(a, b identity) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.rdev, b.rdev), strings.Compare(a.path, b.path))
	})
	return slices.Compact(out)
}

// contains reports whether all nodes of part are among those of whole.
func contains(whole, part []identity) bool {
	return !slices.ContainsFunc(part, func(n identity) bool { return !slices.Contains(whole, n) })
}

// uniteNodes adds to every device the other paths of its nodes, so that paths
// alone show that two devices are the same hardware, or what is held.
func (f *Found) uniteNodes(held []string) {
	paths := map[number][]string{}
	note := func(nodes []string) {
		for _, path := range nodes {
			if n, ok := numberOf(path); ok {
				paths[n] = append(paths[n], path)
			}
		}
	}
	note(held)
	for _, d := range f.Devices {
		note(d.Nodes)
	}
	for i := range f.Devices {
		d := &f.Devices[i]
		for _, path := range slices.Clone(d.Nodes) {
			if n, ok := numberOf(path); ok {
				d.Nodes = append(d.Nodes, paths[n]...)
			}
		}
		slices.Sort(d.Nodes)
		d.Nodes = slices.Compact(d.Nodes)
	}
}

func (f *Found) preflight() {
	owned := map[identity]string{} // node → the device that is it
	for _, d := range f.Devices {
		for _, id := range d.ids {
			owned[id] = d.Names[0]
		}
	}
	for i := range f.Devices {
		d := &f.Devices[i]
		d.Fault = preflight(d.edits, &d.spec.raw.ContainerEdits)
		for _, n := range d.spec.raw.ContainerEdits.DeviceNodes {
			if other, ok := owned[identityOf(hostPath(n))]; ok && d.Fault == "" {
				d.Fault = fmt.Sprintf("its spec injects %s with every device, which is the device %s: correct the spec", hostPath(n), other)
			}
		}
		if d.Fault != "" {
			f.problem(d.Names[0], "mend what is named, or generate the spec anew; until then the device is not granted", "%s (%s)", d.Fault, d.spec.path)
		}
	}
}

// noteShared tells of nodes that several devices of a kind have: only one of
// those devices is granted at a time. For the slices of one card that is meant;
// a control node belongs into the edits of the whole spec.
func (f *Found) noteShared() {
	type key struct{ kind, node string }
	sharing := map[key]int{}
	for _, d := range f.Devices {
		for _, node := range d.Nodes {
			sharing[key{d.Kind, node}]++
		}
	}
	for k, n := range sharing {
		if n > 1 {
			f.Problems = append(f.Problems, Problem{
				Subject: k.kind, Harmless: true, Detail: fmt.Sprintf("%d devices of kind %s share %s: one of them is granted at a time", n, k.kind, k.node),
				Remedy: "none needed for slices of one card; a control node belongs into the containerEdits of the whole spec",
			})
		}
	}
}

// compareNames puts card2 before card10 and everything else before "all".
func compareNames(a, b string) int {
	rank := func(name string) int {
		if strings.HasSuffix(name, "="+everything) {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

// shownFaults bounds the devices that a message names.
const shownFaults = 4

// Lacks says why a profile's devices could not be granted even if nothing else
// ran on this host, with the remedy; "" if they could.
func (f *Found) Lacks(p *profiles.Profile) string {
	for _, want := range p.Resources.Devices {
		var fit, defined int64
		var faults []string
		taken := map[string]bool{}
		for _, d := range f.Devices {
			if d.Kind != want.Kind {
				continue
			}
			defined++
			switch {
			case d.Fault != "":
				faults = append(faults, d.Names[0]+": "+d.Fault)
			case !slices.ContainsFunc(d.Nodes, func(n string) bool { return taken[n] }):
				fit++
				for _, n := range d.Nodes {
					taken[n] = true
				}
			}
		}
		if fit >= want.Count {
			continue
		}
		text := fmt.Sprintf("devices of kind %s: %d wanted, %d of %d that the CDI specs define can be granted", want.Kind, want.Count, fit, defined)
		for _, fault := range faults[:min(len(faults), shownFaults)] {
			text += "; " + fault
		}
		if len(faults) == 0 {
			text += ": generate the spec (`hostagent doctor` says what is there), or ask for fewer"
		}
		return text
	}
	return ""
}
