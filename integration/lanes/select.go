package main

import (
	"bytes"
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

// listedPackage is what go list says of a package.
type listedPackage struct {
	ImportPath   string
	Dir          string
	TestGoFiles  []string
	XTestGoFiles []string
}

func goList(ctx context.Context, root string, args ...string) ([]listedPackage, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-e", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}, args...)...)
	cmd.Dir = root
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.Bytes())
	}
	var packages []listedPackage
	decoder := json.NewDecoder(bytes.NewReader(out))
	for {
		var p listedPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		packages = append(packages, p)
	}
}

// tagged finds the tests that exist only with a build tag.
func tagged(ctx context.Context, root, tag string) ([]selection, error) {
	without, err := goList(ctx, root, "./...")
	if err != nil {
		return nil, err
	}
	with, err := goList(ctx, root, "-tags", tag, "./...")
	if err != nil {
		return nil, err
	}
	plain := map[string]bool{}
	for _, p := range without {
		for _, f := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			plain[filepath.Join(p.Dir, f)] = true
		}
	}
	var selections []selection
	for _, p := range with {
		s := selection{pkg: p.ImportPath}
		for _, f := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			path := filepath.Join(p.Dir, f)
			if plain[path] {
				continue
			}
			names, err := testsIn(path)
			if err != nil {
				return nil, err
			}
			s.tests = append(s.tests, names...)
		}
		if len(s.tests) > 0 {
			selections = append(selections, s)
		}
	}
	return selections, nil
}

// testsIn reads the names of a file's test functions.
func testsIn(path string) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if ok && f.Recv == nil && f.Name.Name != "TestMain" &&
			(strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz") || strings.HasPrefix(f.Name.Name, "Example")) {
			names = append(names, f.Name.Name)
		}
	}
	return names, nil
}
