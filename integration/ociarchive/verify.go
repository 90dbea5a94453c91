package ociarchive

import (
	"encoding/hex"
	"errors"
	"hash"
	"io"
)

var errChanged = errors.New("the layer changed while the archive was made")

// verifyReader passes bytes on and turns the end of the stream into an error
// when they do not have the wanted SHA-256.
type verifyReader struct {
	io.ReadCloser
	hasher hash.Hash
	want   string
}

func (v *verifyReader) Read(p []byte) (int, error) {
	n, err := v.ReadCloser.Read(p)
	v.hasher.Write(p[:n])
	if errors.Is(err, io.EOF) && hex.EncodeToString(v.hasher.Sum(nil)) != v.want {
		return n, errChanged
	}
	return n, err
}
