//go:build deps

// Package deps pins modules during construction; removed before the first release.
package deps

import (
	_ "github.com/abadojack/whatlanggo"
	_ "github.com/containerd/containerd/v2/client"
	_ "github.com/coreos/go-systemd/v22/activation"
	_ "github.com/coreos/go-systemd/v22/daemon"
	_ "github.com/dadrus/httpsig"
	_ "github.com/go-json-experiment/json"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/go-containerregistry/pkg/v1"
	_ "github.com/google/go-containerregistry/pkg/v1/layout"
	_ "github.com/google/go-containerregistry/pkg/v1/mutate"
	_ "github.com/google/go-containerregistry/pkg/v1/tarball"
	_ "github.com/hanwen/go-fuse/v2/fuse"
	_ "github.com/hashicorp/go-hclog"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/opencontainers/image-spec/specs-go/v1"
	_ "github.com/opencontainers/runtime-spec/specs-go"
	_ "github.com/pelletier/go-toml/v2"
	_ "github.com/remitly-oss/httpsig-go"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/santhosh-tekuri/jsonschema/v6"
	_ "github.com/spf13/cobra"
	_ "github.com/spf13/cobra/doc"
	_ "github.com/transparency-dev/formats/proof"
	_ "github.com/transparency-dev/merkle"
	_ "golang.org/x/crypto/ssh"
	_ "golang.org/x/image/font/opentype"
	_ "golang.org/x/mod/sumdb/note"
	_ "golang.org/x/mod/sumdb/tlog"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "modernc.org/sqlite"
	_ "pgregory.net/rapid"
)
