// Package store keeps attempt records on disk so that every acknowledged write
// survives a crash and a power cut, and nothing else can be mistaken for one.
//
// It owns the directory, the file format, revisions, archive and retention. It
// does not know HTTP, retry policy or what a transition means: that is package
// attempt, whose Step it applies.
//
// # Directory
//
//	scope                        store id, scope, number of opens, whether the last close was clean
//	lock                         flock: one opener
//	active/<key>.attempt         one record per unresolved or unarchived attempt
//	history/<seq>-<key>.attempt  archived records; seq has 16 digits and counts up
//	hosts/<generation>.witness   last checkpoint and highest leaf seen of a host generation
//	reserve/<key>.reserve        preallocated space of two full records, given up when the disk is full
//	*.tmp                        a write that was never acknowledged; removed and reported at the next open
//
// Every file is one line of JSON that holds its format, the store's id, the
// record's revision and a SHA-256 over that line and the rest, then the content
// (for records the canonical bytes of attempt.Encode), then a line feed.
//
// # Assumptions
//
// A file whose fsync succeeded is on disk; a rename within the file system is
// atomic and on disk once the directories' fsync succeeded; after a failed
// fsync nothing is assumed about what was written. Linux, one local file
// system.
//
// # Writes
//
// One goroutine makes all changes, in the order in which they were accepted: a
// temporary file in the same directory, fsync, rename, fsync of the directory,
// only then the answer. A failure other than a full disk before the rename
// poisons the store (I35): no later write is acknowledged, and a fresh process
// reads the state again. At open, unless the last close was clean, every file
// is written again and synced before Open returns.
package store
