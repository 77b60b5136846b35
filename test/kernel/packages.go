package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// realTests is the file that holds the tests of what only a kernel can show.
const realTests = "real_test.go"

// testPackage is a package with such tests.
type testPackage struct {
	path, dir string
	tests     []string
}

// list returns the packages among the patterns that have a real_test.go.
func list(ctx context.Context, root string, patterns []string) ([]testPackage, error) {
	if len(patterns) == 0 {
		return nil, errors.New("no packages: name those to test, such as ./agent/... for all of the agent")
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}, patterns...)...)
	cmd.Dir = root
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages: %w: %s", err, complaint.String())
	}
	var found []testPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("listing the packages: %w", err)
		}
		if !slices.Contains(slices.Concat(p.TestGoFiles, p.XTestGoFiles), realTests) {
			continue
		}
		tests, err := testsOf(filepath.Join(p.Dir, realTests))
		if err != nil {
			return nil, err
		}
		found = append(found, testPackage{path: p.ImportPath, dir: p.Dir, tests: tests})
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no package of %s has a %s", strings.Join(patterns, " "), realTests)
	}
	return found, nil
}

// testsOf returns the names of a file's tests.
func testsOf(file string) ([]string, error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("reading the tests: %w", err)
	}
	var names []string
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") && fn.Name.Name != "TestMain" {
			names = append(names, fn.Name.Name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no tests", file)
	}
	return names, nil
}
