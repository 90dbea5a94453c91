package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/go-json-experiment/json"
)

// maxFrame bounds a frame's object.
const maxFrame = 2 << 20

// frame is every frame that the worker takes; which members it has is its
// type's business.
type frame struct {
	Type        string `json:"type"`
	Version     int    `json:"version"`
	Token       string `json:"token"`
	ContentType string `json:"content_type"`
	Length      int64  `json:"length"`
	SHA256      string `json:"sha256"`
	Data        []byte `json:"data"`
}

// framed is the model behind length-prefixed frames: the text is looked at
// during preparation, the language is identified when execution is asked for.
func framed(ctx context.Context, l net.Listener) error {
	var wait sync.WaitGroup
	defer wait.Wait()
	stop := context.AfterFunc(ctx, func() { said(0, l.Close()) })
	defer stop()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		wait.Go(func() {
			end := context.AfterFunc(ctx, func() { said(0, conn.Close()) })
			defer end()
			if err := talk(conn); err != nil && !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "channel:", err)
			}
			if end() {
				said(0, conn.Close())
			}
		})
	}
}

// talk serves one channel: one preparation, at most one execution.
func talk(conn net.Conn) error {
	r := bufio.NewReader(conn)
	p, err := readFrame(r)
	if err != nil {
		return err
	}
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256(p.Data))
	switch {
	case p.Type != "prepare" || p.Version != 1:
		return errors.New("the first frame is no preparation of version 1")
	case p.Length != int64(len(p.Data)) || p.SHA256 != sum:
		return errors.New("the input is not the one that the frame names")
	}
	if _, err := detect(p.Data); err != nil {
		return writeFrame(conn, map[string]any{"type": "invalid_input", "token": p.Token, "detail": err.Error()})
	}
	if err := writeFrame(conn, map[string]any{"type": "prepared", "token": p.Token}); err != nil {
		return err
	}
	e, err := readFrame(r)
	if err != nil {
		return err
	}
	if e.Type != "execute" || e.Token != p.Token {
		return errors.New("the second frame is no execution of what was prepared")
	}
	found, err := detect(p.Data)
	if err != nil {
		return writeFrame(conn, map[string]any{"type": "execution_failed", "token": p.Token, "detail": err.Error()})
	}
	data, err := json.Marshal(found, json.Deterministic(true))
	if err != nil {
		return err
	}
	return writeFrame(conn, map[string]any{
		"type": "completed", "token": p.Token, "content_type": "application/json", "length": len(data),
		"sha256": fmt.Sprintf("sha256:%x", sha256.Sum256(data)), "data": data, "warnings": 0,
	})
}

func readFrame(r io.Reader) (frame, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n == 0 || n > maxFrame {
		return frame{}, fmt.Errorf("a frame of %d bytes", n)
	}
	object := make([]byte, n)
	if _, err := io.ReadFull(r, object); err != nil {
		return frame{}, err
	}
	var f frame
	err := json.Unmarshal(object, &f, json.RejectUnknownMembers(true))
	return f, err
}

func writeFrame(w io.Writer, v any) error {
	object, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(object))), object...))
	return err
}
