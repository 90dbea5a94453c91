// Command hostagent is the privileged part of Quittance. It parses its command
// line and knows nothing else; see package hostagent.
package main

import (
	"os"

	"github.com/quittance/quittance/cmd/hostagent/command"
)

func main() { os.Exit(command.Main(os.Args[1:])) }
