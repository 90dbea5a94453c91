// Command mkimage builds reference workers as OCI archives and prints, a line
// each, the reference that pins the image and the archive's path.
//
//	mkimage [-dir build/images] [NAME …]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/quittance/quittance/integration/workers/images"
)

func main() {
	dir := flag.String("dir", "build/images", "directory of the archives and of what is cached for them")
	flag.Parse()
	names := flag.Args()
	if len(names) == 0 {
		names = images.Names()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := buildAll(ctx, *dir, names); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		stop()
		os.Exit(1)
	}
}

func buildAll(ctx context.Context, dir string, names []string) error {
	for _, name := range names {
		built, err := images.Build(ctx, dir, name)
		if err != nil {
			return err
		}
		fmt.Println(built.Ref, built.File)
	}
	return nil
}
