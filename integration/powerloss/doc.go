// Package powerloss shows what a store's files look like after the power went
// at a random moment, without a virtual machine.
//
// It owns the recording of a disk and the making of what may be left of it. It
// must not know any store: a store comes as a [Workload].
//
//	store ─► ext4 ─► loop device ─► FUSE file ─► log: write, flush, promise …
//
// A recording holds every write and flush that reached the disk, in order, and
// between them the promises that the store made (acknowledgements). For a
// random cut in that log a disk is built: everything that a completed flush
// covers is there; of what was written after it, sectors of 512 bytes are
// dropped, kept, reordered or torn at random. The disk is mounted and the store
// opens what it finds; every promise before the cut must be kept.
//
// What ext4 forgives (it makes the name of a new file durable together with
// its contents) this cannot show; an in-process file system that forgets every
// unsynced name does, in the stores' own tests.
//
// Needs root, /dev/fuse and loop devices. Mounts live in a mount namespace of
// the test's own process and go with it; loop devices free themselves.
package powerloss
