package checks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quittance/quittance/controller"
	"github.com/quittance/quittance/hostagent"
)

// The packages' scripts refuse a downgrade by the formats that the programs of the same
// tree read (I9).
func TestScriptsKnowTheFormats(t *testing.T) {
	for script, format := range map[string]int{
		"packaging/scripts/hostagent-preinstall.sh":  hostagent.LedgerFormat,
		"packaging/scripts/controller-preinstall.sh": controller.StoreFormat,
	} {
		if want := fmt.Sprintf("\nFORMAT=%d\n", format); !strings.Contains(string(read(t, script)), want) {
			t.Errorf("%s lacks %q", script, want)
		}
	}
}
