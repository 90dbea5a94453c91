//go:build engine

package engine

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
)

// An image of a registry is fetched, unpacked and pinned under its digest.
func TestPull(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/pulled"
	image, err := random.Image(1000, 2)
	must(t, err)
	push(t, server.URL+"/v2/pulled", image)
	digest, err := image.Digest()
	must(t, err)

	pulled, err := shared.engine.PullImage(t.Context(), repository+":v1")
	must(t, err)
	want := repository + "@" + digest.String()
	if pulled.Pinned != want || pulled.Name != repository+":v1" || string(pulled.Digest) != digest.String() {
		t.Errorf("pulled %+v, want %s", pulled, want)
	}
	first, err := shared.engine.ResolveImage(t.Context(), want)
	must(t, err)
	again, err := shared.engine.ResolveImage(t.Context(), want)
	if err != nil || again != first || first.Digest != pulled.Digest || first.ChainID == "" {
		t.Errorf("resolved %+v, then %+v, %v", first, again, err)
	}
	if _, err := shared.engine.PullImage(t.Context(), repository+":absent"); err == nil {
		t.Error("an absent image was pulled")
	}
}

// push puts the image's parts into a registry, as tag v1.
func push(t *testing.T, url string, image v1.Image) {
	t.Helper()
	send := func(method, url, contentType string, body io.Reader) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, url, body)
		must(t, err)
		request.Header.Set("Content-Type", contentType)
		answer, err := http.DefaultClient.Do(request)
		must(t, err)
		if answer.StatusCode != http.StatusCreated {
			t.Fatalf("%s %s: %s", method, url, answer.Status)
		}
		must(t, answer.Body.Close())
	}
	layers, err := image.Layers()
	must(t, err)
	for _, layer := range layers {
		digest, err := layer.Digest()
		must(t, err)
		content, err := layer.Compressed()
		must(t, err)
		send(http.MethodPost, url+"/blobs/uploads/?digest="+digest.String(), "application/octet-stream", content)
	}
	config, err := image.RawConfigFile()
	must(t, err)
	digest, err := image.ConfigName()
	must(t, err)
	send(http.MethodPost, url+"/blobs/uploads/?digest="+digest.String(), "application/octet-stream", bytes.NewReader(config))
	manifest, err := image.RawManifest()
	must(t, err)
	mediaType, err := image.MediaType()
	must(t, err)
	send(http.MethodPut, url+"/manifests/v1", string(mediaType), bytes.NewReader(manifest))
}

// The same archive again changes nothing; what is no archive is refused.
func TestImport(t *testing.T) {
	dir := t.TempDir()
	archive, err := workerArchive(dir)
	must(t, err)
	imported, err := shared.engine.ImportImage(t.Context(), archive)
	must(t, err)
	if len(imported) != 1 || imported[0].Pinned != shared.image || !strings.HasSuffix(shared.image, "@"+string(imported[0].Digest)) {
		t.Errorf("imported %+v, want %s again", imported, shared.image)
	}
	garbage := filepath.Join(dir, "garbage")
	must(t, os.WriteFile(garbage, []byte("no archive"), 0o600))
	if _, err := shared.engine.ImportImage(t.Context(), garbage); err == nil {
		t.Error("garbage was imported")
	}
	if _, err := shared.engine.ImportImage(t.Context(), filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
}
