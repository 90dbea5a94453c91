package packaging

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/quittance/quittance/controller"
	"github.com/quittance/quittance/hostagent"
)

// The scripts refuse a downgrade by the formats that the programs of the same
// tree read (I9).
func TestScriptsKnowTheFormats(t *testing.T) {
	for script, format := range map[string]int{
		"scripts/hostagent-preinstall.sh":  hostagent.LedgerFormat,
		"scripts/controller-preinstall.sh": controller.StoreFormat,
	} {
		text, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("\nFORMAT=%d\n", format); !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %q", script, want)
		}
	}
}
