// Package checks holds the tests that look at the repository itself: which
// package may import which, what the built binaries contain, that every package
// says what it owns, and that documents agree with code.
//
// It has no code of its own and knows nothing of what the packages do.
package checks
