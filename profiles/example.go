package profiles

import _ "embed"

// Example is a profile with every key described: the reference of the format.
// It is what `hostagent` shows and the package installs.
//
//go:embed example.toml
var Example string
