// Command archive writes the OCI archive that hostagent controller-container
// runs: one static program and nothing else. The same program gives the same
// bytes.
//
//	go run ./packaging/archive -program build/controller -out controller.oci.tar
//
// It knows nothing of how the container is made.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"

	"github.com/quittance/quittance/integration/ociarchive"
)

func main() {
	program := flag.String("program", "", "the controller's static binary")
	arch := flag.String("arch", runtime.GOARCH, "the architecture that it was built for")
	out := flag.String("out", "", "the archive's file")
	flag.Parse()
	if err := write(*program, *arch, *out); err != nil {
		fmt.Fprintln(os.Stderr, "archive:", err)
		os.Exit(1)
	}
}

func write(program, arch, out string) error {
	if program == "" || out == "" {
		return fmt.Errorf("-program and -out must be given")
	}
	const inside = "/usr/bin/controller"
	file, err := ociarchive.Binary(program, inside)
	if err != nil {
		return err
	}
	layer, err := ociarchive.Files([]ociarchive.File{file})
	if err != nil {
		return err
	}
	_, err = ociarchive.Write(out, ociarchive.Image{
		Name: "controller", Layers: []ociarchive.Layer{layer}, Entrypoint: []string{inside}, Architecture: arch,
	})
	if err != nil {
		return err
	}
	return os.Chmod(out, 0o644)
}
