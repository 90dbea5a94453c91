#!/bin/sh
# Builds the three packages as .deb and .rpm into build/packages (or $1), all
# from this tree and the same bytes for the same commit, on every machine: every
# time in them is the commit's, and the Go is go.mod's (toolchain.sh). Several may
# run at once: each stages its files by itself.
#
#	packaging/build.sh [DIRECTORY]
#
# QUITTANCE_VERSION names the version and SOURCE_DATE_EPOCH the time; the defaults
# are made of the commit. QUITTANCE_PACKAGERS="deb" leaves the .rpm out, and
# QUITTANCE_ARCHS="amd64 arm64" builds for those instead of for this machine.
# QUITTANCE_PROGRAMS="hostagent" makes only that package. QUITTANCE_BINARIES names
# a directory that gets the programs too, as PROGRAM_ARCH.
set -eu

cd "$(dirname "$0")/.."
tree=$PWD
. packaging/toolchain.sh
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
VERSION=${QUITTANCE_VERSION:-0.1.0~git$(TZ=UTC git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd).$(git rev-parse --short=12 HEAD)}
export SOURCE_DATE_EPOCH VERSION
umask 022

out=${1:-build/packages}
mkdir -p "$out" build
out=$(cd "$out" && pwd)
rm -f "$out"/quittance-*.deb "$out"/quittance-*.rpm

# The descriptions name their files from here.
work=$(mktemp -d "$tree/build/packages.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
ln -s "$tree/packaging" "$tree/LICENSE" "$work/"

# nfpm has a module graph of its own: it is run, not required.
GOBIN=$work/bin go install "$nfpm"

# changelog NAME: Debian's form of the one entry that a package has.
changelog() {
	printf '%s (%s) unstable; urgency=medium\n\n' "$1" "$VERSION"
	printf '  * The changes of every version are in the CHANGELOG.md of the sources.\n\n'
	printf ' -- The Quittance authors <quittance@localhost>  %s\n' "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
}

# documents DIRECTORY TARGET: content lines for every file below it. rpm marks
# documentation, which nfpm neither does for a tree nor knows of elsewhere.
documents() {
	(cd "$1" && find . -type f | LC_ALL=C sort) | while read -r file; do
		printf '  - {src: %s, dst: %s, packager: rpm, type: doc, file_info: {mode: 0644}}\n' "$1/${file#./}" "$2/${file#./}"
		printf '  - {src: %s, dst: %s, packager: deb, file_info: {mode: 0644}}\n' "$1/${file#./}" "$2/${file#./}"
	done
}

for arch in ${QUITTANCE_ARCHS:-$(go env GOARCH)}; do
	for program in ${QUITTANCE_PROGRAMS:-hostagent controller agentctl}; do
		stage=$work/build/stage/$program
		share=$stage/doc
		rm -rf "$stage" # of another architecture
		mkdir -p "$share"
		GOARCH=$arch CGO_ENABLED=0 go build -trimpath -buildvcs=false \
			-ldflags "-s -w -buildid= -X github.com/quittance/quittance/cmd/$program/command.Version=$VERSION" \
			-o "$stage/$program" "./cmd/$program"
		if [ -n "${QUITTANCE_BINARIES:-}" ]; then
			cp "$stage/$program" "$QUITTANCE_BINARIES/${program}_$arch"
		fi
		go run ./packaging/man -program "$program" -dir "$stage" -date "$SOURCE_DATE_EPOCH"
		cp packaging/copyright LICENSE "$share/"
		changelog "quittance-$program" | gzip -9n >"$stage/changelog.gz"
		if [ "$program" = hostagent ]; then
			mkdir -p "$share/examples"
			cp -R packaging/etc/profiles "$share/examples/"
		fi
		if [ "$program" = controller ]; then
			mkdir -p "$share/examples"
			cp -R packaging/etc/offerings "$share/examples/"
			go run ./packaging/archive -program "$stage/controller" -arch "$arch" -out "$stage/controller.oci.tar"
		fi
		if [ "$program" != agentctl ]; then
			cp -R packaging/runbooks "$share/"
		fi
		if [ -d "packaging/metrics/$program" ]; then
			cp -R "packaging/metrics/$program" "$share/metrics"
		fi
		cp "packaging/nfpm/$program.yaml" "$stage/nfpm.yaml"
		{
			documents "$stage/man" /usr/share/man
			documents "$share" "/usr/share/doc/quittance-$program"
			# Only lintian asks for these.
			printf '  - {src: %s, dst: /usr/share/doc/quittance-%s/changelog.gz, packager: deb, file_info: {mode: 0644}}\n' "$stage/changelog.gz" "$program"
			printf '  - {src: packaging/lint/quittance-%s.overrides, dst: /usr/share/lintian/overrides/quittance-%s, packager: deb, file_info: {mode: 0644}}\n' "$program" "$program"
		} >>"$stage/nfpm.yaml"
		find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
		for kind in ${QUITTANCE_PACKAGERS:-deb rpm}; do
			(cd "$work" && ARCH=$arch bin/nfpm package --config "$stage/nfpm.yaml" --packager "$kind" --target "$out/")
		done
	done
done
ls -l "$out"
