package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/quittance/quittance/integration/workers/worker"
)

func post(t *testing.T, contentType, body string) (int, []byte) {
	t.Helper()
	server := httptest.NewServer(worker.Worker{ContentType: "text/plain", MaxBytes: maxText, Predict: identify}.Handler())
	defer server.Close()
	response, err := http.Post(server.URL+"/predict", contentType, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, answer
}

// The model is real: texts of seven languages in five scripts are told apart.
func TestIdentifiesLanguages(t *testing.T) {
	for text, want := range map[string][2]string{
		"The committee has agreed to meet again on Thursday to consider the remaining proposals.":      {"eng", "Latin"},
		"Der Ausschuss hat beschlossen, am Donnerstag wieder zusammenzutreten und weiter zu beraten.":  {"deu", "Latin"},
		"Le comité a décidé de se réunir de nouveau jeudi pour examiner les propositions restantes.":   {"fra", "Latin"},
		"El comité ha decidido reunirse de nuevo el jueves para examinar las propuestas que quedan.":   {"spa", "Latin"},
		"Комитет решил собраться снова в четверг, чтобы рассмотреть оставшиеся предложения.":           {"rus", "Cyrillic"},
		"Η επιτροπή αποφάσισε να συνεδριάσει ξανά την Πέμπτη για να εξετάσει τις υπόλοιπες προτάσεις.": {"ell", "Greek"},
		"समिति ने गुरुवार को शेष प्रस्तावों पर विचार करने के लिए फिर से बैठक करने का निर्णय लिया है।":  {"hin", "Devanagari"},
	} {
		status, body := post(t, "text/plain; charset=utf-8", text)
		var got result
		if err := json.Unmarshal(body, &got, json.RejectUnknownMembers(true)); err != nil || status != http.StatusOK {
			t.Fatalf("status %d, %s, %v", status, body, err)
		}
		if got.Language != want[0] || got.Script != want[1] {
			t.Errorf("%.20s…: %+v, want %v", text, got, want)
		}
		if got.Confidence < 0 || got.Confidence > 1 {
			t.Errorf("confidence %v", got.Confidence)
		}
	}
}

func TestBadInput(t *testing.T) {
	for name, c := range map[string]struct {
		contentType, body string
		status            int
		answer            string
	}{
		"other type":   {"application/json", `{}`, 415, `{"error":"Content-Type must be text/plain"}`},
		"empty":        {"text/plain", " \n", 400, `{"error":"the text is empty"}`},
		"not UTF-8":    {"text/plain", "\xff\xfe", 400, `{"error":"the text is not valid UTF-8"}`},
		"no letters":   {"text/plain", "1234 5678", 400, `{"error":"the text has no letters of a known script"}`},
		"over ceiling": {"text/plain", strings.Repeat("a", maxText+1), 413, `{"error":"the body is longer than 1048576 bytes"}`},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := post(t, c.contentType, c.body)
			if status != c.status || string(bytes.TrimSpace(body)) != c.answer {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}
