# shellcheck shell=sh
# Sourced at the top of the tree by what makes packages: they are built by
# exactly the release of Go that go.mod names, whichever newer one is installed,
# and with settings that neither the environment nor `go env -w` changes. Programs,
# compressed archives and bills of materials all depend on both.

go_release=go$(sed -n 's/^go //p' go.mod)

# Go from 1.21 on fetches the named release as a module, checked against Go's
# checksum database, unless it is that release itself.
export GOTOOLCHAIN="$go_release"
export GOFLAGS='-trimpath -buildvcs=false' GOWORK=off GOAMD64=v1 GOARM64=v8.0 GOFIPS140=off
unset GOEXPERIMENT

go_found=$(go env GOVERSION GOEXPERIMENT | tr '\n' ' ') || go_found=
if [ "${go_found%% *}" != "$go_release" ]; then
	echo "toolchain: packages are built with $go_release, which go.mod names, and there is ${go_found:-no such Go}: install that release, or Go 1.21 or later and let it fetch it (GOPROXY)" >&2
	exit 1
fi
if [ "$(echo "$go_found" | wc -w)" -ne 1 ]; then
	echo "toolchain: packages are built without experiments: go env -u GOEXPERIMENT" >&2
	exit 1
fi
