package checks

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metricsql"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.yaml.in/yaml/v3"

	"github.com/quittance/quittance/controller"
	"github.com/quittance/quittance/hostagent"
)

// figure is one metric as the code describes it.
type figure struct {
	name, help string
	labels     []string
}

// descriptions is a registerer that only asks what would be registered.
type descriptions struct{ all []figure }

var descForm = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "([^"]*)", unit: "", constLabels: \{\}, variableLabels: \{([^}]*)\}\}$`)

func (d *descriptions) Register(c prometheus.Collector) error {
	found := make(chan *prometheus.Desc)
	go func() {
		defer close(found)
		c.Describe(found)
	}()
	var unread error
	for desc := range found {
		m := descForm.FindStringSubmatch(desc.String())
		if m == nil {
			unread = fmt.Errorf("%s has another form than this test knows", desc)
			continue
		}
		f := figure{name: m[1], help: m[2]}
		if m[3] != "" {
			f.labels = strings.Split(m[3], ",")
		}
		d.all = append(d.all, f)
	}
	return unread
}

func (d *descriptions) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := d.Register(c); err != nil {
			panic(err)
		}
	}
}

func (d *descriptions) Unregister(prometheus.Collector) bool { return false }

// figuresOf lists a daemon's figures, those of its process last.
func figuresOf(t *testing.T, program string) (own, process []figure) {
	t.Helper()
	d, p := &descriptions{}, &descriptions{}
	register := map[string]func(prometheus.Registerer) error{"hostagent": hostagent.RegisterFigures, "controller": controller.RegisterFigures}[program]
	if err := register(d); err != nil {
		t.Fatal(err)
	}
	p.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, m := range regexp.MustCompile(`Name: "(quittance_[a-z_]+)", Help: "([^"]+)"`).FindAllSubmatch(read(t, "cmd/internal/exposition/exposition.go"), -1) {
		f := figure{name: string(m[1]), help: string(m[2])}
		if f.name == "quittance_build_info" {
			f.labels = []string{"program", "version"}
		}
		p.all = append(p.all, f)
	}
	if len(d.all) < 10 || len(p.all) < 5 {
		t.Fatalf("%s has %d and %d figures: this test sees too few", program, len(d.all), len(p.all))
	}
	return d.all, p.all
}

var daemons = []string{"hostagent", "controller"}

// Names say what they are of, in base units, and labels are few.
func TestFiguresAreNamedAsUsual(t *testing.T) {
	for _, program := range daemons {
		own, _ := figuresOf(t, program)
		for _, f := range own {
			if !regexp.MustCompile(`^quittance_(agent|controller|jobs)_[a-z_]+$`).MatchString(f.name) || !strings.HasSuffix(f.help, ".") && !strings.Contains(f.help, ";") {
				t.Errorf("%s: name or help %q is out of form", f.name, f.help)
			}
			for _, l := range f.labels {
				// I33, I37: a label's values are known beforehand.
				if !slices.Contains([]string{"operation", "disposition", "code", "kind", "source", "verdict", "scope", "reason", "class", "state"}, l) {
					t.Errorf("%s: label %s is none whose values are few", f.name, l)
				}
			}
		}
	}
}

// Every query that is shipped parses, and names only figures and labels that the
// code has. The parser is MetricsQL's, which takes all of PromQL.
func TestShippedQueries(t *testing.T) {
	for _, program := range daemons {
		own, process := figuresOf(t, program)
		known := map[string][]string{}
		for _, f := range append(own, process...) {
			known[f.name] = f.labels
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				known[f.name+suffix] = append(slices.Clone(f.labels), "le")
			}
		}
		queries := append(ruleQueries(t, program), dashboardQueries(t, program)...)
		if len(queries) < 15 {
			t.Fatalf("%s: only %d queries were found: this test looks in the wrong place", program, len(queries))
		}
		for _, q := range queries {
			for _, problem := range checkQuery(q, known) {
				t.Errorf("%s: %s: %s", program, q, problem)
			}
		}
	}
}

// checkQuery lists what is wrong with one query.
func checkQuery(q string, known map[string][]string) (problems []string) {
	parsed, err := metricsql.Parse(strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*").Replace(q))
	if err != nil {
		return []string{err.Error()}
	}
	metricsql.VisitAll(parsed, func(e metricsql.Expr) {
		m, ok := e.(*metricsql.MetricExpr)
		if !ok {
			return
		}
		for _, filters := range m.LabelFilterss {
			name := ""
			for _, f := range filters {
				if f.Label == "__name__" {
					name = f.Value
				}
			}
			labels, exists := known[name]
			if !exists {
				problems = append(problems, "there is no figure "+name)
				continue
			}
			for _, f := range filters {
				if f.Label != "__name__" && f.Label != "instance" && !slices.Contains(labels, f.Label) {
					problems = append(problems, name+" has no label "+f.Label)
				}
			}
		}
	})
	return problems
}

// The check itself finds what it is for.
func TestShippedQueriesCanFail(t *testing.T) {
	known := map[string][]string{"quittance_x_total": {"code"}}
	for q, good := range map[string]bool{
		`rate(quittance_x_total{code="a"}[5m])`: true, `quittance_y_total`: false, `quittance_x_total{state="a"}`: false, `sum(quittance_x_total`: false,
	} {
		if problems := checkQuery(q, known); (len(problems) == 0) != good {
			t.Errorf("%s: %v", q, problems)
		}
	}
}

// The alert on blocked admission fires for a fault and for what needs a person,
// and not for an intended drain or a busy host, however long they last.
func TestDrainFiresNoAlert(t *testing.T) {
	fires := map[string]bool{}
	for _, q := range ruleQueries(t, "controller") {
		parsed, err := metricsql.Parse(q)
		if err != nil {
			t.Fatal(err)
		}
		metricsql.VisitAll(parsed, func(e metricsql.Expr) {
			m, ok := e.(*metricsql.MetricExpr)
			if !ok {
				return
			}
			for _, filters := range m.LabelFilterss {
				if !slices.ContainsFunc(filters, func(f metricsql.LabelFilter) bool {
					return f.Label == "__name__" && f.Value == "quittance_controller_admission_blocked"
				}) {
					continue
				}
				for _, reason := range blockedReasons(t) {
					fires[reason] = fires[reason] || selects(filters, "reason", reason)
				}
			}
		})
	}
	want := map[string]bool{"drain": false, "room": false, "person": true, "fault": true}
	if !maps.Equal(fires, want) {
		t.Errorf("the alert fires for %v, want %v", fires, want)
	}
}

// selects reports whether a selector takes a series with the label's value.
func selects(filters []metricsql.LabelFilter, label, value string) bool {
	for _, f := range filters {
		if f.Label != label {
			continue
		}
		match := f.Value == value
		if f.IsRegexp {
			match = regexp.MustCompile("^(?:" + f.Value + ")$").MatchString(value)
		}
		if match == f.IsNegative {
			return false
		}
	}
	return true
}

// blockedReasons are the values of the figure's label, as the code has them.
func blockedReasons(t *testing.T) (all []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`Cause = "([a-z]+)"`).FindAllSubmatch(read(t, "controller/internal/service/admission.go"), -1) {
		all = append(all, string(m[1]))
	}
	return all
}

func ruleQueries(t *testing.T, program string) (queries []string) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []struct {
				Alert       string            `yaml:"alert"`
				Expr        string            `yaml:"expr"`
				For         string            `yaml:"for"`
				Labels      map[string]string `yaml:"labels"`
				Annotations map[string]string `yaml:"annotations"`
			} `yaml:"rules"`
		} `yaml:"groups"`
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(read(t, "packaging/metrics/"+program+"/rules.yml"))))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if !strings.HasPrefix(r.Alert, "Quittance") || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s: alert %s lacks its name, severity, summary or description", program, r.Alert)
			}
			queries = append(queries, r.Expr)
		}
	}
	return queries
}

func dashboardQueries(t *testing.T, program string) (queries []string) {
	t.Helper()
	var board struct {
		UID    string `json:"uid"`
		Panels []struct {
			ID      int    `json:"id"`
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(read(t, "packaging/metrics/"+program+"/dashboard.json"), &board); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("%s: panel %d %q is there twice or empty", program, p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
	}
	return queries
}

// The man page lists every figure as the code has it. UPDATE_GOLDEN=1 writes
// that part of it anew.
func TestManualListsFigures(t *testing.T) {
	const begin, end = "# FIGURES\n", "\n# SEE ALSO\n"
	for _, program := range daemons {
		own, process := figuresOf(t, program)
		var list strings.Builder
		list.WriteString(begin)
		for _, f := range append(own, process...) {
			fmt.Fprintf(&list, "\n**%s**", f.name)
			if len(f.labels) > 0 {
				fmt.Fprintf(&list, " (%s)", strings.Join(f.labels, ", "))
			}
			list.WriteString("\n: " + f.help + "\n")
		}
		page := "packaging/man/pages/quittance-" + program + "-metrics.7.md"
		text := string(read(t, page))
		before, rest, found := strings.Cut(text, begin)
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("%s has no FIGURES followed by SEE ALSO", page)
		}
		if want := before + list.String() + end + after; text != want {
			if os.Getenv("UPDATE_GOLDEN") != "" {
				if err := os.WriteFile(filepath.Join(root(t), page), []byte(want), 0o644); err != nil {
					t.Fatal(err)
				}
				continue
			}
			t.Errorf("%s does not list the figures as the code has them: UPDATE_GOLDEN=1 writes it", page)
		}
	}
}
