// Command worker is what the controller's lane tests run inside containers: a
// static HTTP server whose behaviour the request itself chooses. Every request
// that it begins to work on leaves a line with the digest of its bytes in
// /gate/executions, so that a test counts what really ran, and "hold" waits
// until the test makes /gate/open. It is not ready while /gate/loading exists.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "eat" { // a child of "childeat" or "childhang"
		eat(os.Args[2])
		return
	}
	http.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		status := "READY"
		if exists("/gate/loading") {
			status = "LOADING"
		}
		answer(w, fmt.Sprintf(`{"status":%q}`, status))
	})
	http.HandleFunc("POST /predict", predict)
	fail(http.ListenAndServe("127.0.0.1:8080", nil))
}

func predict(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the request was cut: nothing was executed
	}
	sum := sha256.Sum256(body)
	begun(hex.EncodeToString(sum[:]))
	verb, argument, _ := strings.Cut(string(body), " ")
	argument, _, _ = strings.Cut(argument, " ") // more words only tell requests apart
	switch verb {
	case "hold":
		for !exists("/gate/open") {
			time.Sleep(5 * time.Millisecond)
		}
	case "pause": // MILLISECONDS: works that long
		n, err := strconv.Atoi(argument)
		fail(err)
		time.Sleep(time.Duration(n) * time.Millisecond)
	case "eatonce": // MEBIBYTES: the first execution eats, a replacement does not
		if executions(hex.EncodeToString(sum[:])) == 1 {
			eat(argument)
		}
	case "exitonce": // CODE: likewise
		if executions(hex.EncodeToString(sum[:])) == 1 {
			code, err := strconv.Atoi(argument)
			fail(err)
			os.Exit(code)
		}
	case "eat": // MEBIBYTES: touches that much memory
		eat(argument)
	case "childeat": // MEBIBYTES: a child eats; whatever becomes of it, the answer is fine
		child(argument)
	case "childhang": // MEBIBYTES: likewise, and no answer ever comes
		child(argument)
		select {}
	case "hang": // no answer ever comes, while /health says that all is well
		select {}
	case "exit": // CODE
		code, err := strconv.Atoi(argument)
		fail(err)
		os.Exit(code)
	case "refuse":
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	}
	answer(w, fmt.Sprintf(`{"length":%d,"sha256":"%s"}`, len(body), hex.EncodeToString(sum[:])))
}

// child runs this program as a child that eats, and waits for its end.
func child(mebibytes string) {
	// How it ended is what the test is about; it is not for us to know.
	_ = exec.Command("/proc/self/exe", "eat", mebibytes).Run()
}

// begun leaves a line that survives whatever becomes of the process.
func begun(digest string) {
	f, err := os.OpenFile("/gate/executions", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	fail(err)
	_, err = f.WriteString(digest + "\n")
	fail(err)
	fail(f.Close())
}

// executions counts the lines that begun left for a digest.
func executions(digest string) int {
	data, err := os.ReadFile("/gate/executions")
	fail(err)
	return strings.Count(string(data), digest+"\n")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// eaten keeps the memory from being freed.
var eaten [][]byte

func eat(mebibytes string) {
	n, err := strconv.Atoi(mebibytes)
	fail(err)
	for range n {
		block := make([]byte, 1<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		eaten = append(eaten, block)
	}
}

func answer(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	if _, err := io.WriteString(w, text); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(70)
	}
}
