package ociimage

// Bound gives an image smaller bounds than the package's, for tests that reach
// them.
func (i *Image) Bound(bytes, stream int64, names int) {
	i.most = budget{bytes: bytes, stream: stream, names: names}
}
