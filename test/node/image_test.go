package node_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"plimsoll.dev/test/node"
)

// TestImage follows an image from its index to the program as a runtime does.
func TestImage(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("the program"), 0o755); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := (node.Image{Name: "localhost/a/b:v1", Program: program, Args: []string{"x"}}).Write(&out); err != nil {
		t.Fatal(err)
	}
	files := untar(t, out.Bytes())
	type ref struct {
		Digest      string
		Size        int
		Annotations map[string]string
	}
	blob := func(r ref) []byte {
		b := files["blobs/sha256/"+r.Digest[len("sha256:"):]]
		if got := fmt.Sprintf("sha256:%x", sha256.Sum256(b)); got != r.Digest || len(b) != r.Size {
			t.Errorf("the blob %s has digest %s and %d bytes, want %d", r.Digest, got, len(b), r.Size)
		}
		return b
	}
	var index struct{ Manifests []ref }
	decode(t, files["index.json"], &index)
	if got := index.Manifests[0].Annotations["io.containerd.image.name"]; got != "localhost/a/b:v1" {
		t.Errorf("the image is named %q", got)
	}
	var manifest struct {
		Config ref
		Layers []ref
	}
	decode(t, blob(index.Manifests[0]), &manifest)
	layer := blob(manifest.Layers[0])
	if diff := cmp.Diff(map[string][]byte{"app": []byte("the program")}, untar(t, layer)); diff != "" {
		t.Error("layer (-want +got):\n" + diff)
	}
	var config struct {
		Config struct{ Entrypoint, Cmd []string }
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode(t, blob(manifest.Config), &config)
	if diff := cmp.Diff([]string{"/app", "x", fmt.Sprintf("sha256:%x", sha256.Sum256(layer))},
		append(append(config.Config.Entrypoint, config.Config.Cmd...), config.Rootfs.DiffIDs...)); diff != "" {
		t.Error("configuration (-want +got):\n" + diff)
	}
}

func decode(t *testing.T, b []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}

func untar(t *testing.T, b []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}
