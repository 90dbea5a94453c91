package packaging

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	agentctl "github.com/quittance/quittance/cmd/agentctl/command"
	controller "github.com/quittance/quittance/cmd/controller/command"
	hostagent "github.com/quittance/quittance/cmd/hostagent/command"
)

var programs = map[string]func() *cobra.Command{"agentctl": agentctl.New, "controller": controller.New, "hostagent": hostagent.New}

// runbooks reads every page.
func runbooks(t *testing.T) map[string]string {
	t.Helper()
	found, err := filepath.Glob("runbooks/*.md")
	if err != nil || len(found) < 10 {
		t.Fatalf("%v, %v", found, err)
	}
	pages := map[string]string{}
	for _, page := range found {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		pages[page] = string(text)
	}
	return pages
}

// words splits a command line as a shell would, as far as the pages need it.
func words(line string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`"([^"]*)"|(\S+)`).FindAllStringSubmatch(line, -1) {
		out = append(out, m[1]+m[2])
	}
	return out
}

// parse gives a command line to the program's own commands without running it.
func parse(line []string) error {
	root := programs[line[0]]()
	command, rest, err := root.Find(line[1:])
	if err != nil {
		return err
	}
	if err := command.ParseFlags(rest); err != nil {
		return err
	}
	if command.HasSubCommands() {
		// A page may speak of a group of commands, but not of one that is not there.
		if args := command.Flags().Args(); len(args) > 0 {
			return &unknownCommand{args[0]}
		}
		return nil
	}
	if err := command.ValidateArgs(command.Flags().Args()); err != nil {
		return err
	}
	return command.ValidateRequiredFlags()
}

// asController is how a command is run as the controller's user.
var asController = []string{"runuser", "-u", "quittance-controller", "--"}

// ownersOnly are the controller's groups of commands that open its state
// directory, which refuse anybody but its owner.
var ownersOnly = []string{"hostkey", "provider", "store", "token"}

type unknownCommand struct{ name string }

func (e *unknownCommand) Error() string { return "no command " + e.name }

// Every command of ours in a runbook parses, flags, arguments and all; every
// unit that it names is ours or the engine's.
func TestRunbooksNameRealCommands(t *testing.T) {
	code := regexp.MustCompile("`([^`\n]+(?:\n[^`\n]+)?)`")
	unit := regexp.MustCompile(`\b[a-z-]+\.(service|socket)\b`)
	commands := 0
	for page, text := range runbooks(t) {
		for _, m := range code.FindAllStringSubmatch(text, -1) {
			line := words(m[1])
			prefixed := len(line) > len(asController) && slices.Equal(line[:len(asController)], asController)
			if prefixed {
				line = line[len(asController):]
			}
			for _, name := range unit.FindAllString(m[1], -1) {
				if _, err := os.Stat(filepath.Join("systemd", name)); err != nil && name != "containerd.service" {
					t.Errorf("%s: %s is no unit of ours", page, name)
				}
			}
			if len(line) < 2 || programs[line[0]] == nil || strings.HasPrefix(line[1], "Test") {
				continue // prose, or a test of the package hostagent
			}
			commands++
			if line[0] == "controller" && slices.Contains(ownersOnly, line[1]) && !prefixed {
				t.Errorf("%s: %s is refused to root: %s", page, m[1], strings.Join(asController, " "))
			}
			if err := parse(line); err != nil {
				t.Errorf("%s: %s: %v", page, m[1], err)
			}
		}
	}
	if commands < 40 {
		t.Errorf("only %d commands: this test reads the pages wrongly", commands)
	}
	for _, wrong := range []string{"agentctl nothing", "agentctl drain --waits 1h", "hostagent ledger chek", "controller provider handover ONE", "agentctl owner set"} {
		if parse(words(wrong)) == nil {
			t.Errorf("%s is taken for a command", wrong)
		}
	}
}

// Every runbook names the tests that play it through, and the lanes run them.
func TestRunbooksNameRealTests(t *testing.T) {
	listed := map[string]bool{}
	lists, err := filepath.Glob("../integration/lanes/*.txt")
	if err != nil || len(lists) == 0 {
		t.Fatal(lists, err)
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range strings.Split(string(text), "\n") {
			listed[row] = true
		}
	}
	index, err := os.ReadFile("runbooks/README.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z/]+ Test[A-Za-z0-9]+)`")
	for page, text := range runbooks(t) {
		if filepath.Base(page) == "README.md" {
			continue
		}
		if !strings.Contains(string(index), "("+filepath.Base(page)+")") {
			t.Errorf("runbooks/README.md does not name %s", page)
		}
		_, tests, found := strings.Cut(text, "\nPlayed through by: ")
		rows := named.FindAllStringSubmatch(tests, -1)
		if !found || len(rows) == 0 {
			t.Errorf("%s names no test that plays it through", page)
		}
		for _, row := range rows {
			if !listed[row[1]] {
				t.Errorf("%s names the test %s, which no lane runs", page, row[1])
			}
		}
	}
}
