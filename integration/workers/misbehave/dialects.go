package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// In the modes kserve and framed the first word of a request's text says how it
// fails; the text itself is the worker's own words wherever it says anything. A
// worker that has failed by an answer ends with 0 after it, so that no test waits
// for its end: what the answer was worth must not depend on that.
const (
	verbFine      = "fine"      // answers as it should
	verbError     = "error"     // answers with the protocol's own form of an error
	verbErrorInOK = "error-ok"  // kserve: the same form under status 200
	verbMalformed = "malformed" // answers something that contradicts itself
	verbForeign   = "foreign"   // answers another request: a wrong id or token
	verbOversized = "oversized" // answers in form and far too much
	verbAnnounces = "announces" // framed: announces a frame that nobody takes
	verbHalf      = "half"      // dies in the middle of its answer
	verbOOM       = "oom"       // takes memory until the kernel kills it
	verbSilent    = "silent"    // never answers
	verbInvalid   = "invalid"   // framed: refuses the input during preparation
)

// tooMuch is more text than a test's offering takes.
const tooMuch = 256 << 10

// dialectModel is what kserve calls the model.
const dialectModel = "misbehave"

// kserveFaults is a server of the Open Inference Protocol.
func kserveFaults(ctx context.Context, _ options, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/health/ready", func(w http.ResponseWriter, _ *http.Request) { write(w, `{"ready":true}`) })
	mux.HandleFunc("POST /v2/models/"+dialectModel+"/infer", func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			ID     string `json:"id"`
			Inputs []struct {
				Data []string `json:"data"`
			} `json:"inputs"`
		}
		data, err := io.ReadAll(io.LimitReader(r.Body, maxRequest))
		if err == nil {
			err = json.Unmarshal(data, &asked)
		}
		if err != nil || len(asked.Inputs) != 1 || len(asked.Inputs[0].Data) != 1 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		inferBadly(w, r, asked.ID, asked.Inputs[0].Data[0])
	})
	return listen(ctx, l, mux)
}

func inferBadly(w http.ResponseWriter, r *http.Request, id, text string) {
	verb, _, _ := strings.Cut(text, " ")
	answer := func(id, content string) string {
		return fmt.Sprintf(`{"model_name":%q,"id":%q,"outputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":[%q]}]}`, dialectModel, id, content)
	}
	said := fmt.Sprintf(`{"error":%q}`, text)
	// whole sends an answer to its last byte and ends.
	whole := func(status int, body string) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		if write(w, body) {
			// The client may have left by now: then it does not want the rest.
			_ = http.NewResponseController(w).Flush()
		}
		os.Exit(0)
	}
	w.Header().Set("Content-Type", "application/json")
	switch verb {
	case verbFine:
		write(w, answer(id, text))
	case verbError:
		whole(http.StatusInternalServerError, said)
	case verbErrorInOK:
		whole(http.StatusOK, said)
	case verbMalformed:
		whole(http.StatusOK, fmt.Sprintf(`{"model_name":%q,"id":%q,"outputs":[{"name":"text","shape":[2],"datatype":"BYTES","data":["one"]}]}`, dialectModel, id))
	case verbForeign:
		whole(http.StatusOK, answer(id+"-other", text))
	case verbOversized:
		whole(http.StatusOK, answer(id, strings.Repeat("x", tooMuch)))
	case verbHalf:
		body := answer(id, text)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		if write(w, body[:len(body)/2]) {
			// What fails here fails as it should: the answer is cut short.
			_ = http.NewResponseController(w).Flush()
		}
		os.Exit(exitDead)
	case verbOOM:
		allocate()
	case verbSilent:
		<-r.Context().Done()
	default:
		w.WriteHeader(http.StatusBadRequest)
	}
}

// framedFaults is a worker that splits preparation from execution in
// length-prefixed JSON objects.
func framedFaults(ctx context.Context, _ options, l net.Listener) error {
	var wait sync.WaitGroup
	defer wait.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // Accept says so
	defer stop()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		wait.Go(func() {
			end := context.AfterFunc(ctx, func() { _ = conn.Close() }) // a read says so
			defer end()
			if err := talkBadly(conn); err != nil && !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "misbehave: channel:", err)
			}
			_ = conn.Close() // the other side may have gone long before
		})
	}
}

// talkBadly serves one channel up to its fault.
func talkBadly(conn net.Conn) error {
	var asked struct {
		Type  string `json:"type"`
		Token string `json:"token"`
		Data  []byte `json:"data"`
	}
	if err := readObject(conn, &asked); err != nil {
		return err
	}
	text, token := string(asked.Data), asked.Token
	verb, _, _ := strings.Cut(text, " ")
	detail := func(kind string) error {
		return writeObject(conn, map[string]any{"type": kind, "token": token, "detail": text})
	}
	if verb == verbInvalid {
		return last(detail("invalid_input"))
	}
	if err := writeObject(conn, map[string]any{"type": "prepared", "token": token}); err != nil {
		return err
	}
	if err := readObject(conn, &asked); err != nil {
		return err
	}
	completed := func(token, content string) map[string]any {
		data, err := json.Marshal(map[string]string{"text": content})
		if err != nil {
			panic(err) // the text is valid: it came as JSON
		}
		return map[string]any{"type": "completed", "token": token, "content_type": "application/json", "length": len(data),
			"sha256": fmt.Sprintf("sha256:%x", sha256.Sum256(data)), "data": data, "warnings": 0}
	}
	switch verb {
	case verbFine:
		return writeObject(conn, completed(token, text))
	case verbError:
		return last(detail("execution_failed"))
	case verbMalformed:
		other := completed(token, text)
		other["length"] = 1
		return last(writeObject(conn, other))
	case verbForeign:
		return last(writeObject(conn, completed(strings.Repeat("0", len(token)), text)))
	case verbOversized:
		return last(writeObject(conn, completed(token, strings.Repeat("x", tooMuch))))
	case verbAnnounces:
		_, err := conn.Write([]byte{0xff, 0xff, 0xff, 0xff, '{'})
		return last(err)
	case verbHalf:
		object, err := json.Marshal(completed(token, text))
		if err == nil {
			_, err = conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(object))), object[:len(object)/2]...))
		}
		if err == nil {
			os.Exit(exitDead)
		}
		return err
	case verbOOM:
		allocate()
	case verbSilent:
		_, err := io.Copy(io.Discard, conn)
		return err
	}
	return errors.New("an unknown verb")
}

// last ends the worker after its last word.
func last(err error) error {
	if err == nil {
		os.Exit(0)
	}
	return err
}

// maxObject bounds a frame's object.
const maxObject = 2 << 20

func readObject(r io.Reader, v any) error {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxObject {
		return fmt.Errorf("a frame of %d bytes", n)
	}
	object := make(jsontext.Value, n)
	if _, err := io.ReadFull(r, object); err != nil {
		return err
	}
	return json.Unmarshal(object, v)
}

func writeObject(w io.Writer, v any) error {
	object, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(object))), object...))
	return err
}
