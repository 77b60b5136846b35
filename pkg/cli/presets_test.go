package cli_test

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// TestPresetsAreAccepted applies the shipped presets to a real API server.
func TestPresetsAreAccepted(t *testing.T) {
	files, err := filepath.Glob("../../charts/plimsoll/files/presets/*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatalf("the presets: %v, %v", files, err)
	}
	c, _ := connect(t)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p := &v1alpha1.ClusterResourcePolicy{}
		if err := yaml.UnmarshalStrict(text, p); err != nil {
			t.Fatal(err)
		}
		if want := p.Name + ".yaml"; filepath.Base(file) != want {
			t.Errorf("%s holds the policy %s", file, p.Name)
		}
		if err := c.Create(t.Context(), p); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if err := c.Delete(t.Context(), p); err != nil {
			t.Error(err)
		}
	}
}
