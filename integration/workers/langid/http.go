package main

import (
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/go-json-experiment/json"
)

// maxRequest bounds a request document of the inference protocols.
const maxRequest = 4 << 20

// read decodes a request document and answers where it cannot.
func read(rw http.ResponseWriter, r *http.Request, refuse func(http.ResponseWriter, int, string), v any) bool {
	data, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxRequest))
	if err != nil {
		refuse(rw, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body did not arrive whole, or has more than %d bytes", maxRequest))
		return false
	}
	if err := json.Unmarshal(data, v); err != nil {
		refuse(rw, http.StatusBadRequest, "the body is not a request document")
		return false
	}
	return true
}

// write answers with one document.
func write(rw http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"error":"the answer could not be encoded"}`)
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	said(rw.Write(data))
}

// said notes an answer that its client did not wait for.
func said(_ int, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "answer:", err)
	}
}
