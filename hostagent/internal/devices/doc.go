// Package devices reads the specs of the Container Device Interface (CDI) on
// this host, says which devices can be leased and whether each would work now,
// and makes the edits that a container with leased devices gets.
//
// It owns the reading of spec files, what counts as one device, and the
// preflight of everything that a device's edits name. It must not know
// allocations or who holds what: leases are core's, folded from receipts. It
// changes nothing on the host.
//
//	spec files ─► parse ─► group by device nodes ─► preflight ─► Found ─► core leases by nodes
//	leased devices ─► look again ─► same spec, still fit ─► Injection ─► OCI spec
//
// # What one device is
//
// A device's identity is the set of device nodes that its own edits inject.
// Names with the same set (an index and a UUID of one card) are one device with
// several names. A node that two paths lead to counts as one. Never leased are:
//
//   - a device that injects no node: nothing could be exclusive about it;
//   - a device whose nodes contain all nodes of another of its kind: it is a
//     bundle such as "all", and its parts are leased one by one;
//   - a name that two spec files of equal priority define.
//
// Nodes that a spec injects with each of its devices (a driver's control nodes)
// are shared and identify nothing, unless another device is one of them.
//
// # Trust
//
// Whoever can write a spec decides what root runs: its hooks run as root on the
// host. So a spec, a spec directory or a hook that anyone but root can write is
// refused, as profiles are.
package devices
