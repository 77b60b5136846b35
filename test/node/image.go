package node

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
)

// Image is a container image of one static program; pods use it with
// imagePullPolicy Never.
type Image struct {
	Name    string   // as pods write it, "localhost/plimsoll/workload:v1"
	Program string   // the program's path on this machine
	Args    []string // the image's default arguments
}

// descriptor is an OCI content descriptor.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Write packs the image as a tar file in the OCI image layout: index.json
// names a manifest, that a configuration and one layer, which holds /app.
func (i Image) Write(w io.Writer) error {
	program, err := os.ReadFile(i.Program)
	if err != nil {
		return fmt.Errorf("reading the image's program: %w", err)
	}
	blobs := map[string][]byte{}
	add := func(mediaType string, content []byte) descriptor {
		d := descriptor{MediaType: mediaType, Digest: digest(content), Size: len(content)}
		blobs["blobs/sha256/"+d.Digest[len("sha256:"):]] = content
		return d
	}
	layer, err := archive(map[string][]byte{"app": program}, 0o755)
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/app"}, "Cmd": i.Args},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return fmt.Errorf("encoding the image's configuration: %w", err)
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": add("application/vnd.oci.image.config.v1+json", config),
		"layers": []descriptor{add("application/vnd.oci.image.layer.v1.tar", layer)},
	})
	if err != nil {
		return fmt.Errorf("encoding the image's manifest: %w", err)
	}
	top := add("application/vnd.oci.image.manifest.v1+json", manifest)
	top.Annotations = map[string]string{"io.containerd.image.name": i.Name, "org.opencontainers.image.ref.name": i.Name}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{top}})
	if err != nil {
		return fmt.Errorf("encoding the image's index: %w", err)
	}
	blobs["index.json"], blobs["oci-layout"] = index, []byte(`{"imageLayoutVersion":"1.0.0"}`)
	layout, err := archive(blobs, 0o644)
	if err != nil {
		return err
	}
	if _, err := w.Write(layout); err != nil {
		return fmt.Errorf("writing the image: %w", err)
	}
	return nil
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// archive returns a tar file of the files, by name, all with one mode.
func archive(files map[string][]byte, mode int64) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: mode}); err != nil {
			return nil, fmt.Errorf("packing %s: %w", name, err)
		}
		if _, err := w.Write(content); err != nil {
			return nil, fmt.Errorf("packing %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("packing an image: %w", err)
	}
	return out.Bytes(), nil
}
