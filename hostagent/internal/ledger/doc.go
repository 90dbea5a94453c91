// Package ledger is the agent's append-only log: what was promised and done,
// in order, durable before anybody is told.
//
// It owns the bytes on disk, their order, their durability and the proof that
// nothing in the middle was lost. It must not know what a payload means:
// receipts, intents and bases are bytes to it, and the state that they fold
// into belongs to the caller.
//
// # On disk
//
//	DIR.created                  marker beside the directory: there was a ledger, and its generation
//	DIR/0000000001.segment       zero-filled ahead, then written from the front
//	DIR/0000000002.segment       the next one; the highest are still empty ("spares")
//	DIR/ballast                  only takes up space, given up first on a full disk
//
//	segment  = header record record … zeros
//	header   = magic "QLEDGER1" · version u32 · CRC-32C u32 · generation 16 bytes ·
//	           ordinal u64 · size u64 · first sequence u64 · flags u64 · hash before it 32 bytes
//	record   = length u32 · CRC-32C u32 · sequence u64 · durable through u64 ·
//	           SHA-256 of the previous record 32 bytes · kind u8 · flags u8 · 2 zero bytes ·
//	           payload · zeros to a multiple of 8
//
// Integers are little-endian. Both checksums also cover the generation, the
// segment's ordinal and the offset, so that a block that was written or copied
// to another place is not valid there. "Durable through" is the highest
// sequence that was synced when the record was written: it attests them. A
// header is written only after everything before it was synced: it attests all
// lower sequences. The records of one Append are a group: every one but the
// last is flagged "more follow", and a group never spans two segments, so it
// survives a crash whole or not at all.
//
// # Formats
//
// The version in a header is that of the whole content: of these bytes and of
// what receipts, intents and bases may say. Whatever an older program could not
// fold raises [Format]. Older formats stay readable, each released one from a
// fixture in testdata/released; a later one is refused with *FormatError before
// anything is taken for a torn tail. The packages refuse to put an older agent
// over it.
//
// # Opening
//
//	bad or missing record, attested by a later valid one   damage: *DamageError, nothing is touched
//	bad tail that nothing attests, or an unfinished group  cut
//	then every byte behind the last attested record is written again in place
//	and synced, the directories too, before Open returns (I35)
//
// The last point matters because a failed fdatasync may leave pages that are
// clean in the page cache and absent from the disk: a fresh process would read
// them, "sync" them with success and serve what a power cut takes away.
//
// What this cannot see by itself: the loss of a whole tail together with
// everything that attested it (a restored backup, a disk that lied). The
// controller's witness shows that (I9).
//
// # Writing
//
// One goroutine writes. It takes whatever is queued, writes it, syncs once and
// answers all of it (group commit). After AttestAfter of idleness it appends
// an attest record that nobody waits for, so that the last acknowledged record
// is attested too. Any write or sync error is final: nothing is acknowledged
// any more, and only a fresh process reads the truth again.
//
// # Space
//
// Spares are written full of zeros before they are needed, enough of them for
// Options.Reserve bytes and a release: with the disk full those can still be
// filled (I36). Open returns only when they are there. Until one that a release
// began is made anew, [Space] says what is left.
// On file systems that copy on write that is not a promise. The ballast is
// given up before that, so that the engine can still remove containers; new
// work is to be refused while [Space] says that the disk is full.
//
// # Releasing
//
// A release begins a segment with a base, the caller's folded state, and the
// records that go with it, as one group. It is synced, then attested and synced
// again, and only then are whole older segments removed. The fold begins at the
// newest whole base; a crash on the way leaves the older one in force, or
// leftovers that Open removes.
package ledger
