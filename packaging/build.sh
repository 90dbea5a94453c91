#!/bin/sh
# Builds the three packages as .deb and .rpm into build/packages (or $1), all
# from this tree and the same bytes for the same commit: every time in them is
# the commit's.
#
#	packaging/build.sh [DIRECTORY]
#
# QUITTANCE_VERSION names the version and SOURCE_DATE_EPOCH the time; the defaults
# are made of the commit. QUITTANCE_PACKAGERS="deb" leaves the .rpm out.
set -eu

cd "$(dirname "$0")/.."
out=${1:-build/packages}
stage=build/stage
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
VERSION=${QUITTANCE_VERSION:-0.1.0~git$(TZ=UTC git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd).$(git rev-parse --short=12 HEAD)}
ARCH=$(go env GOARCH)
export SOURCE_DATE_EPOCH VERSION ARCH
umask 022

rm -rf "$stage"
mkdir -p "$out"
rm -f "$out"/quittance-*.deb "$out"/quittance-*.rpm
for program in hostagent controller agentctl; do
	mkdir -p "$stage/$program"
	CGO_ENABLED=0 go build -trimpath -buildvcs=false \
		-ldflags "-s -w -buildid= -X github.com/quittance/quittance/cmd/$program/command.Version=$VERSION" \
		-o "$stage/$program/$program" "./cmd/$program"
	go run ./packaging/man -program "$program" -dir "$stage/$program" -date "$SOURCE_DATE_EPOCH"
done
go run ./packaging/archive -program "$stage/controller/controller" -arch "$ARCH" -out "$stage/controller/controller.oci.tar"
# Trees are packed with the modes that they have here.
mkdir "$stage/hostagent/profiles" "$stage/controller/offerings"
install -m 0644 packaging/etc/profiles/* "$stage/hostagent/profiles/"
install -m 0644 packaging/etc/offerings/* "$stage/controller/offerings/"
find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

# nfpm has a module graph of its own: it is run, not required.
for program in hostagent controller agentctl; do
	for kind in ${QUITTANCE_PACKAGERS:-deb rpm}; do
		go run "$nfpm" package --config "packaging/nfpm/$program.yaml" --packager "$kind" --target "$out/"
	done
done
ls -l "$out"
