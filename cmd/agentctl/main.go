// Command agentctl is the operator's and the submitter's tool: the host agent
// over its private socket, jobs over the job service's HTTP.
package main

import (
	"os"

	"github.com/quittance/quittance/cmd/agentctl/command"
)

func main() { os.Exit(command.Main(os.Args[1:])) }
