#!/bin/sh
# Builds the current containerd 2.x, daemon and shim, for the lanes that run
# against it, and prints the daemon's path:
#
#	QUITTANCE_CONTAINERD=$(integration/setup/containerd2.sh) make engine
#
# The version is pinned here; Go's checksum database vouches for it. What was
# built once is used again: build/containerd-VERSION. About 3 minutes the first
# time on two cores.
set -eu
cd "$(dirname "$0")/../.."
version=v2.4.2
dir=$PWD/build/containerd-$version

if [ ! -x "$dir/containerd" ] || [ ! -x "$dir/containerd-shim-runc-v2" ]; then
	echo "setup: building containerd $version" >&2
	mkdir -p "$dir"
	# Without CRI and the file systems that need a device: the lanes use
	# neither, and the build takes half the time.
	GOBIN=$dir CGO_ENABLED=0 GOFLAGS=-trimpath ${GO:-go} install -tags no_cri,no_btrfs,no_devmapper,no_zfs,no_aufs \
		-ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$version" \
		"github.com/containerd/containerd/v2/cmd/containerd@$version" \
		"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2@$version" >&2
fi
case $("$dir/containerd" --version) in
*" $version "* | *" $version") ;;
*)
	echo "setup: $dir/containerd is not $version: remove build/containerd-$version and run this again" >&2
	exit 1
	;;
esac
echo "$dir/containerd"
