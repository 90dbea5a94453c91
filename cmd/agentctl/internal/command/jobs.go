package command

import "github.com/spf13/cobra"

func (a *app) jobsCommand() *cobra.Command {
	return &cobra.Command{Use: "jobs", Short: "Submit and follow jobs"}
}
