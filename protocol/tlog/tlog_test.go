package tlog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	formats "github.com/transparency-dev/formats/log"
	tlogproof "github.com/transparency-dev/formats/proof"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/quittance/quittance/protocol"
)

const generation = protocol.ID("00112233445566778899aabbccddeeff")

// testKey is a fixed key: Ed25519 seed of 32 bytes of 7. The note formats and
// the signature below are written out, so a change of format is seen.
const (
	testPrivate = "PRIVATE+KEY+quittance/00112233445566778899aabbccddeeff+41542e43+AQcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH"
	testPublic  = "quittance/00112233445566778899aabbccddeeff+41542e43+AepKbGPinFIKvvVQexMuxfmVR3auvr57kkIe6mkURtIs"
)

func testSigner(t testing.TB) *Signer {
	t.Helper()
	s, err := parseSigner(testPrivate)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testKey(t testing.TB) *PublicKey {
	t.Helper()
	k, err := ParsePublicKey(testPublic)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// log is a small in-memory log of the kind that the agent keeps.
type memoryLog struct {
	leaves [][]byte
	stored []tlog.Hash
}

func (l *memoryLog) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, x := range indexes {
		out[i] = l.stored[x]
	}
	return out, nil
}

func newLog(t testing.TB, size int) *memoryLog {
	t.Helper()
	l := &memoryLog{}
	for i := range size {
		leaf := fmt.Appendf(nil, `{"index":%d}`, i)
		hashes, err := tlog.StoredHashesForRecordHash(int64(i), LeafHash(leaf), l)
		if err != nil {
			t.Fatal(err)
		}
		l.leaves = append(l.leaves, leaf)
		l.stored = append(l.stored, hashes...)
	}
	return l
}

func (l *memoryLog) tree(t testing.TB, size int) Tree {
	t.Helper()
	root, err := tlog.TreeHash(int64(size), l)
	if err != nil {
		t.Fatal(err)
	}
	return Tree{Size: int64(size), Root: root}
}

func (l *memoryLog) proof(t testing.TB, s *Signer, size, index int) Proof {
	t.Helper()
	hashes, err := tlog.ProveRecord(int64(size), int64(index), l)
	if err != nil {
		t.Fatal(err)
	}
	text, err := SignCheckpoint(s, l.tree(t, size))
	if err != nil {
		t.Fatal(err)
	}
	return Proof{Index: protocol.Index(index), Hashes: hashes, Checkpoint: text}
}

// RFC 6962 written out: SHA-256 of 0x00 and the leaf.
func TestLeafHash(t *testing.T) {
	const want = "sha256:6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d" // of a single zero byte
	if got := LeafDigest(nil); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	h, err := HashOf(want)
	if err != nil || h != LeafHash(nil) || DigestOf(h) != want {
		t.Errorf("HashOf: %v %v", h, err)
	}
	if _, err := HashOf("sha256:00"); err == nil {
		t.Error("a short digest was accepted")
	}
	if !bytes.Equal(EmptyRoot[:], rfc6962.DefaultHasher.EmptyRoot()) {
		t.Error("EmptyRoot differs from the independent implementation's")
	}
}

// Golden bytes of a checkpoint: Ed25519 is deterministic.
func TestCheckpointBytes(t *testing.T) {
	text, err := SignCheckpoint(testSigner(t), newLog(t, 3).tree(t, 3))
	if err != nil {
		t.Fatal(err)
	}
	const want = "quittance/00112233445566778899aabbccddeeff\n3\nsHQMVWulR2YqF4oAyFZpN2CPKcXsA3ypmmXYg3kOJB8=\n\n— quittance/00112233445566778899aabbccddeeff QVQuQzdPsWUIW2anKP7lcQlYULC+gfTqbuiWb4AbyhDLVD3LnUgDKgFpUwfTkzHYWAWz4z1isGd1k085Mp8M5TmGSQU=\n"
	if text != want {
		t.Errorf("\n got %q\nwant %q", text, want)
	}
	if got := testSigner(t).PublicKey(); got != testPublic {
		t.Errorf("public key %q", got)
	}
}

// An independent reader of C2SP checkpoints accepts ours.
func TestCheckpointReadByOthers(t *testing.T) {
	l := newLog(t, 5)
	text, err := SignCheckpoint(testSigner(t), l.tree(t, 5))
	if err != nil {
		t.Fatal(err)
	}
	v, err := note.NewVerifier(testPublic)
	if err != nil {
		t.Fatal(err)
	}
	c, _, _, err := formats.ParseCheckpoint([]byte(text), "quittance/"+string(generation), v)
	if err != nil {
		t.Fatal(err)
	}
	if want := l.tree(t, 5); c.Size != 5 || !bytes.Equal(c.Hash, want.Root[:]) {
		t.Errorf("read as size %d, root %x", c.Size, c.Hash)
	}
}

// resign signs any body with the test key, for malformed bodies that are
// genuinely signed.
func resign(t *testing.T, body string) string {
	t.Helper()
	signed, err := note.Sign(&note.Note{Text: body}, testSigner(t).signer)
	if err != nil {
		t.Fatal(err)
	}
	return string(signed)
}

func TestParseCheckpointRefuses(t *testing.T) {
	good, err := SignCheckpoint(testSigner(t), newLog(t, 3).tree(t, 3))
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := NewSigner("ffffffffffffffffffffffffffffffff")
	if err != nil {
		t.Fatal(err)
	}
	otherKey, err := ParsePublicKey(other.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	byOther, err := note.Sign(&note.Note{Text: good[:strings.Index(good, "\n\n")+1]}, other.signer)
	if err != nil {
		t.Fatal(err)
	}
	const origin = "quittance/00112233445566778899aabbccddeeff"
	const root = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
	for name, tc := range map[string]struct{ text, want string }{
		"empty":            {"", "checkpoint is not a signed note"},
		"size changed":     {strings.Replace(good, "\n3\n", "\n4\n", 1), "checkpoint's signature is not valid"},
		"unsigned":         {good[:strings.Index(good, "— ")], "checkpoint is not a signed note"},
		"another's":        {string(byOther), "checkpoint is signed by the key of another generation"},
		"extension":        {resign(t, origin+"\n0\n"+root+"\nmore\n"), "checkpoint must have three lines: origin, size, root"},
		"two lines":        {resign(t, origin+"\n0\n"), "checkpoint must have three lines: origin, size, root"},
		"leading zero":     {resign(t, origin+"\n00\n"+root+"\n"), "checkpoint size: must be a plain decimal without sign or leading zeros"},
		"sign":             {resign(t, origin+"\n+1\n"+root+"\n"), "checkpoint size: must be a plain decimal without sign or leading zeros"},
		"size too large":   {resign(t, origin+"\n9223372036854775808\n"+root+"\n"), "checkpoint size: must be a plain decimal without sign or leading zeros"},
		"short root":       {resign(t, origin+"\n0\nAAAA\n"), "checkpoint root: must be 44 characters of base64"},
		"loose base64":     {resign(t, origin+"\n0\n"+root[:42]+"V=\n"), "checkpoint root: is not canonical base64 of 32 bytes"},
		"other origin":     {resign(t, "elsewhere/00112233445566778899aabbccddeeff\n0\n"+root+"\n"), `checkpoint: origin must be "quittance/" and a generation of 32 lower-case hexadecimal digits`},
		"other generation": {resign(t, "quittance/ffffffffffffffffffffffffffffffff\n0\n"+root+"\n"), "checkpoint is signed by the key of another generation"},
		"too long":         {good + strings.Repeat("x", MaxCheckpointBytes), "checkpoint is longer than 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseCheckpoint(tc.text, testKey(t), otherKey)
			if err == nil || err.Error() != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
	if _, err := ParseCheckpoint(good, otherKey); !errors.Is(err, ErrNoKey) {
		t.Errorf("foreign key: got %v, want ErrNoKey", err)
	}
	if _, err := ParseCheckpoint(good); !errors.Is(err, ErrNoKey) {
		t.Errorf("no key: got %v, want ErrNoKey", err)
	}
	c, err := ParseCheckpoint(good, otherKey, testKey(t))
	if err != nil || c.Generation != generation || c.Tree != newLog(t, 3).tree(t, 3) || c.Text != good {
		t.Errorf("genuine: %+v %v", c, err)
	}
}

// Every receipt of every log up to 33 receipts is proved, and every proof is
// checked by two implementations; every altered one is refused by ours.
func TestInclusion(t *testing.T) {
	const most = 33
	l := newLog(t, most)
	for size := 1; size <= most; size++ {
		tree := l.tree(t, size)
		for index := range size {
			hashes, err := tlog.ProveRecord(int64(size), int64(index), l)
			if err != nil {
				t.Fatal(err)
			}
			leaf := LeafHash(l.leaves[index])
			if err := VerifyInclusion(tree, protocol.Index(index), leaf, hashes); err != nil {
				t.Fatalf("%d of %d: %v", index, size, err)
			}
			if err := proof.VerifyInclusion(rfc6962.DefaultHasher, uint64(index), uint64(size), leaf[:], raw(hashes), tree.Root[:]); err != nil {
				t.Fatalf("%d of %d, independently: %v", index, size, err)
			}
			if size > 1 {
				if err := VerifyInclusion(tree, protocol.Index((index+1)%size), leaf, hashes); err == nil {
					t.Fatalf("%d of %d: accepted at another index", index, size)
				}
			}
			for i := range hashes {
				altered := append([]Hash(nil), hashes...)
				altered[i][31] ^= 1
				if err := VerifyInclusion(tree, protocol.Index(index), leaf, altered); !errors.Is(err, ErrMismatch) {
					t.Fatalf("%d of %d: altered hash %d: %v", index, size, i, err)
				}
			}
		}
	}
	tree := l.tree(t, 4)
	for _, index := range []protocol.Index{-1, 4} {
		if err := VerifyInclusion(tree, index, LeafHash(nil), nil); err == nil {
			t.Errorf("index %d of 4 was accepted", index)
		}
	}
}

func raw(hashes []tlog.Hash) [][]byte {
	out := make([][]byte, len(hashes))
	for i := range hashes {
		out[i] = hashes[i][:]
	}
	return out
}

func TestConsistency(t *testing.T) {
	const most = 33
	l := newLog(t, most)
	for newer := 1; newer <= most; newer++ {
		for older := 1; older <= newer; older++ {
			var hashes []tlog.Hash
			if older < newer {
				var err error
				if hashes, err = tlog.ProveTree(int64(newer), int64(older), l); err != nil {
					t.Fatal(err)
				}
			}
			a, b := l.tree(t, older), l.tree(t, newer)
			if err := VerifyConsistency(a, b, hashes); err != nil {
				t.Fatalf("%d → %d: %v", older, newer, err)
			}
			if err := proof.VerifyConsistency(rfc6962.DefaultHasher, uint64(older), uint64(newer), raw(hashes), a.Root[:], b.Root[:]); err != nil {
				t.Fatalf("%d → %d, independently: %v", older, newer, err)
			}
			a.Root[0] ^= 1
			if err := VerifyConsistency(a, b, hashes); !errors.Is(err, ErrMismatch) {
				t.Fatalf("%d → %d: rewritten history: %v", older, newer, err)
			}
		}
	}
	empty := Tree{Root: EmptyRoot}
	if err := VerifyConsistency(empty, l.tree(t, 9), nil); err != nil {
		t.Errorf("from nothing: %v", err)
	}
	if err := VerifyConsistency(Tree{}, l.tree(t, 9), nil); !errors.Is(err, ErrMismatch) {
		t.Errorf("from nothing with a false root: %v", err)
	}
	if err := VerifyConsistency(l.tree(t, 9), l.tree(t, 8), nil); err == nil {
		t.Error("a log that shrank was accepted") // I9
	}
	if err := VerifyConsistency(l.tree(t, 9), l.tree(t, 9), []Hash{{}}); !errors.Is(err, ErrMismatch) {
		t.Error("a proof between equal trees was accepted")
	}
}

func TestProofText(t *testing.T) {
	l := newLog(t, 20)
	s := testSigner(t)
	p := l.proof(t, s, 20, 13)
	text := p.Format()

	var theirs tlogproof.TLogProof
	if err := theirs.Unmarshal([]byte(text)); err != nil {
		t.Fatalf("independent parser: %v", err)
	}
	if theirs.Index != 13 || len(theirs.Hashes) != len(p.Hashes) || string(theirs.Checkpoint) != p.Checkpoint || string(theirs.Marshal()) != text {
		t.Errorf("independent parser read %+v", theirs)
	}

	back, err := ParseProof(text)
	if err != nil {
		t.Fatal(err)
	}
	c, err := back.Verify(l.leaves[13], testKey(t))
	if err != nil || c.Tree != l.tree(t, 20) {
		t.Fatalf("verify: %v %v", c, err)
	}
	if _, err := back.Verify(l.leaves[12], testKey(t)); !errors.Is(err, ErrMismatch) {
		t.Errorf("another leaf: %v", err)
	}
	if _, err := back.Verify(append([]byte(" "), l.leaves[13]...), testKey(t)); !errors.Is(err, ErrMismatch) {
		t.Errorf("re-encoded leaf: %v", err)
	}
	if _, err := back.Verify(l.leaves[13]); !errors.Is(err, ErrNoKey) {
		t.Errorf("no key: %v", err)
	}

	for name, broken := range map[string]string{
		"header":        strings.Replace(text, "@v1", "@v2", 1),
		"extra":         strings.Replace(text, "index", "extra AAAA\nindex", 1),
		"index":         strings.Replace(text, "index 13", "index 013", 1),
		"no index":      strings.Replace(text, "index 13\n", "", 1),
		"negative":      strings.Replace(text, "index 13", "index -1", 1),
		"hash":          strings.Replace(text, "=\n", "\n", 1),
		"no checkpoint": text[:strings.Index(text, "\n\n")+2],
		"CRLF":          strings.ReplaceAll(text, "\n", "\r\n"),
		"too long":      text + strings.Repeat(" ", MaxProofBytes),
		"too many":      strings.Replace(text, "\n\n", strings.Repeat("\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", 129)+"\n\n", 1),
	} {
		if _, err := ParseProof(broken); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestHashesOfMessages(t *testing.T) {
	in := []Hash{EmptyRoot, {}}
	texts := FormatHashes(in)
	if want := []string{"47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}; texts[0] != want[0] || texts[1] != want[1] {
		t.Errorf("got %q", texts)
	}
	back, err := ParseHashes(texts)
	if err != nil || back[0] != in[0] || back[1] != in[1] {
		t.Errorf("back: %v %v", back, err)
	}
	if FormatHashes(nil) == nil {
		t.Error("nil proof is not []")
	}
	if _, err := ParseHashes(make([]string, 129)); err == nil { // I33
		t.Error("129 hashes were accepted")
	}
	if _, err := ParseHashes([]string{"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB="}); err == nil { // I34
		t.Error("non-canonical base64 was accepted")
	}
}

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.key")
	made, err := CreateKeyFile(path, generation)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]os.FileMode{path: 0o600, path + ".pub": 0o644} {
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v, want mode %o", file, info, err, want)
		}
	}
	if _, err := CreateKeyFile(path, generation); !errors.Is(err, os.ErrExist) {
		t.Errorf("an existing key was overwritten: %v", err)
	}
	loaded, err := LoadKeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if loaded.PublicKey() != made.PublicKey() || loaded.Generation() != generation {
		t.Errorf("loaded %v, made %v", loaded, made)
	}
	pub, err := os.ReadFile(path + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParsePublicKey(string(pub))
	if err != nil {
		t.Fatal(err)
	}
	text, err := SignCheckpoint(loaded, Tree{Size: 1, Root: LeafHash(nil)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseCheckpoint(text, key); err != nil {
		t.Error(err)
	}

	private, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	seed := strings.TrimSpace(string(private[len(private)-20:]))
	for _, shown := range []string{fmt.Sprint(loaded), fmt.Sprintf("%v %+v %#v", loaded, loaded, loaded)} { // I37
		if strings.Contains(shown, seed) || strings.Contains(shown, "PRIVATE") {
			t.Errorf("the key is shown: %s", shown)
		}
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKeyFile(path); err == nil || !strings.Contains(err.Error(), "open to others (mode 0640)") {
		t.Errorf("a readable key was accepted: %v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string]string{
		"empty": "", "cut": string(private[:len(private)/2]), "two": string(private) + string(private), "public": string(pub),
		"flipped": strings.Replace(string(private), "KEY+quittance/0", "KEY+quittance/1", 1),
	} {
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := LoadKeyFile(path)
		if err == nil || strings.Contains(err.Error(), seed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := LoadKeyFile(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("loading created or misreported: %v", err)
	}
	if _, err := CreateKeyFile(filepath.Join(t.TempDir(), "k"), "nonsense"); err == nil {
		t.Error("a malformed generation was accepted")
	}
}

func TestParsePublicKeyRefuses(t *testing.T) {
	for _, text := range []string{"", "x", testPublic + "x", strings.Replace(testPublic, "quittance/", "other/", 1), testPublic + strings.Repeat(" ", 2000), testPrivate} {
		if _, err := ParsePublicKey(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
	if k, err := ParsePublicKey(testPublic + "\n"); err != nil || k.Generation() != generation || k.String() != testPublic {
		t.Errorf("with newline: %v %v", k, err)
	}
}

// FuzzProof: what is accepted is written back byte for byte (I34).
func FuzzProof(f *testing.F) {
	l := newLog(f, 9)
	f.Add(l.proof(f, testSigner(f), 9, 4).Format())
	f.Add("c2sp.org/tlog-proof@v1\nindex 0\n\nx")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParseProof(text)
		if err == nil && p.Format() != text {
			t.Errorf("%q is written back as %q", text, p.Format())
		}
	})
}

// FuzzCheckpoint signs whatever body comes, so that the parser behind the
// signature is reached: what is accepted is what SignCheckpoint writes (I34).
func FuzzCheckpoint(f *testing.F) {
	f.Add("quittance/00112233445566778899aabbccddeeff\n3\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n")
	f.Add("\n\n\n")
	s, k := testSigner(f), testKey(f)
	f.Fuzz(func(t *testing.T, body string) {
		signed, err := note.Sign(&note.Note{Text: body}, s.signer)
		if err != nil {
			return // no note at all
		}
		c, err := ParseCheckpoint(string(signed), k)
		if err != nil {
			return
		}
		again, err := SignCheckpoint(s, c.Tree)
		if err != nil || again != string(signed) {
			t.Errorf("%q is written back as %q (%v)", signed, again, err)
		}
	})
}
