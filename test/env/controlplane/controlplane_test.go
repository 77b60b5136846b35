package controlplane_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"plimsoll.dev/test/env/controlplane"
)

const program = `package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() { fmt.Print(filepath.Base(os.Args[0])) }
`

// repository makes a tree in which the control plane is a tiny program, and
// works in one of its folders.
func repository(t *testing.T, source string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                        "module plimsoll.dev\n\ngo 1.26.0\n",
		"test/controlplane/go.mod":      "module plimsoll.dev/test/controlplane\n\ngo 1.26.0\n",
		"test/controlplane/go.sum":      "",
		"test/controlplane/main.go":     source,
		"test/controlplane/sub/keep.go": "package sub\n",
	} {
		write(t, filepath.Join(root, name), text)
	}
	t.Chdir(filepath.Join(root, "test"))
	return root
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func build(t *testing.T) (dir, progress string) {
	t.Helper()
	var b bytes.Buffer
	dir, err := controlplane.Build(t.Context(), &b)
	if err != nil {
		t.Fatal(err)
	}
	return dir, b.String()
}

func TestBuildsOnceUntilSomethingChanges(t *testing.T) {
	root := repository(t, program)
	first, progress := build(t)
	if !strings.Contains(progress, "building Kubernetes") || !strings.Contains(progress, "built in") {
		t.Errorf("a build says %q", progress)
	}
	if want := filepath.Join(root, ".cache", "controlplane"); filepath.Dir(first) != want {
		t.Errorf("built into %s, want a folder in %s", first, want)
	}
	for _, name := range controlplane.Programs {
		out, err := exec.CommandContext(t.Context(), filepath.Join(first, name)).Output()
		if err != nil || string(out) != name {
			t.Errorf("%s calls itself %q, %v", name, out, err)
		}
	}
	if again, progress := build(t); again != first || progress != "" {
		t.Errorf("nothing changed: built %s again, saying %q", again, progress)
	}
	tests := map[string]string{
		"a source": "test/controlplane/sub/keep.go",
		"go.sum":   "test/controlplane/go.sum",
	}
	for name, path := range tests {
		t.Run(name, func(t *testing.T) {
			before, _ := build(t)
			write(t, filepath.Join(root, path), "package sub\n\n// "+name+"\n")
			if path == "test/controlplane/go.sum" {
				write(t, filepath.Join(root, path), "\n")
			}
			after, _ := build(t)
			if after == before {
				t.Error("not built again")
			}
			if _, err := os.Stat(before); err == nil {
				t.Error("the old one is still there")
			}
		})
	}
}

func TestBuildersWaitForEachOther(t *testing.T) {
	repository(t, program)
	const n = 4
	var (
		wg      sync.WaitGroup
		outputs [n]bytes.Buffer
	)
	for i := range n {
		wg.Go(func() {
			if _, err := controlplane.Build(t.Context(), &outputs[i]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	built := 0
	for i := range outputs {
		built += strings.Count(outputs[i].String(), "built in")
	}
	if built != 1 {
		t.Errorf("%d of %d builders built, want 1", built, n)
	}
}

func TestBuildSaysWhatIsWrong(t *testing.T) {
	root := repository(t, "package main\n\nfunc main() { undefinedThing() }\n")
	_, err := controlplane.Build(t.Context(), &bytes.Buffer{})
	for _, want := range []string{"undefinedThing", "go run ./test/env/cmd/controlplane"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a source that does not compile gives %v, want it to say %q", err, want)
		}
	}
	left, err := filepath.Glob(filepath.Join(root, ".cache", "controlplane", "*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "lock" {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestRootIsNeeded(t *testing.T) {
	t.Chdir(t.TempDir())
	if _, err := controlplane.Build(t.Context(), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "plimsoll.dev") {
		t.Errorf("outside of the repository: %v", err)
	}
}

func TestVersionIsThatOfGoMod(t *testing.T) {
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "test", "controlplane", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "\tk8s.io/kubernetes " + controlplane.KubernetesVersion + "\n"; !strings.Contains(string(mod), want) {
		t.Errorf("go.mod does not hold %q", want)
	}
}
