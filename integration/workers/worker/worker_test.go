package worker

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// start serves w on a fresh Unix socket and returns a client for it and the
// function that stops it and returns what Serve returned.
func start(t *testing.T, w Worker) (*http.Client, func() error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "w.sock")
	listener, err := Listen(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, listener, w) }()
	var dialer net.Dialer
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "unix", path) },
	}}
	t.Cleanup(client.CloseIdleConnections)
	return client, func() error { cancel(); return <-done }
}

func body(t *testing.T, response *http.Response, err error) (int, string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

func TestAnswers(t *testing.T) {
	client, stop := start(t, Worker{ContentType: "text/plain", MaxBytes: 8, Predict: func(_ context.Context, input []byte) (any, error) {
		switch string(input) {
		case "bad":
			return nil, &InputError{Reason: "bad input"}
		case "broken":
			return nil, errors.New("model broke")
		case "nocode":
			return make(chan int), nil
		}
		return map[string]int{"length": len(input)}, nil
	}})
	post := func(contentType, content string) (int, string) {
		response, err := client.Post("http://w/predict", contentType, strings.NewReader(content))
		return body(t, response, err)
	}
	response, err := client.Get("http://w/health")
	if status, got := body(t, response, err); status != 200 || got != "{\"status\":\"READY\"}\n" {
		t.Errorf("health: %d %q", status, got)
	}
	for _, c := range []struct {
		contentType, content string
		status               int
		answer               string
	}{
		{"text/plain", "12345678", 200, `{"length":8}`},
		{"text/plain", "123456789", 413, `{"error":"the body is longer than 8 bytes"}`},
		{"image/png", "x", 415, `{"error":"Content-Type must be text/plain"}`},
		{"", "x", 415, `{"error":"Content-Type must be text/plain"}`},
		{"text/plain", "bad", 400, `{"error":"bad input"}`},
		{"text/plain", "broken", 500, `{"error":"model broke"}`},
		{"text/plain", "nocode", 500, `{"error":"the answer could not be encoded"}`},
	} {
		if status, got := post(c.contentType, c.content); status != c.status || got != c.answer+"\n" {
			t.Errorf("%q %q: %d %q", c.contentType, c.content, status, got)
		}
	}
	response, err = client.Get("http://w/predict")
	if status, _ := body(t, response, err); status != http.StatusMethodNotAllowed {
		t.Errorf("GET /predict: %d", status)
	}
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// A request that is under way when the signal comes is still answered.
func TestStopFinishesTheAnswerUnderWay(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	client, stop := start(t, Worker{ContentType: "text/plain", MaxBytes: 8, Predict: func(context.Context, []byte) (any, error) {
		close(entered)
		<-release
		return "done", nil
	}})
	type reply struct {
		response *http.Response
		err      error
	}
	replies := make(chan reply, 1)
	go func() {
		response, err := client.Post("http://w/predict", "text/plain", strings.NewReader("x"))
		replies <- reply{response, err}
	}()
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	close(release)
	got := <-replies
	if status, text := body(t, got.response, got.err); status != 200 || text != "\"done\"\n" {
		t.Errorf("%d %q", status, text)
	}
	client.CloseIdleConnections()
	if err := <-stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestListenRefusesBadAddress(t *testing.T) {
	if _, err := Listen(t.Context(), "127.0.0.1:notaport"); err == nil {
		t.Error("accepted")
	}
}
