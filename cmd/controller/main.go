// Command controller is the unprivileged half of Quittance. It parses its
// command line and knows nothing else; see package controller.
package main

import (
	"os"

	"github.com/quittance/quittance/cmd/controller/command"
)

func main() { os.Exit(command.Main(os.Args[1:])) }
