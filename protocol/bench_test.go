package protocol

import "testing"

// Reading a receipt back: what a follower and the agent's start pay for each.
func BenchmarkDecodeReceipt(b *testing.B) {
	leaf := []byte(leafOf(receiptRows[11]))
	b.SetBytes(int64(len(leaf)))
	for b.Loop() {
		if _, err := DecodeReceipt(leaf); err != nil {
			b.Fatal(err)
		}
	}
}

// Writing one: inside every commit.
func BenchmarkEncodeReceipt(b *testing.B) {
	r := receiptRows[11]
	for b.Loop() {
		EncodeReceipt(testGeneration, 42, r.kind, r.number, at, r.body)
	}
}
