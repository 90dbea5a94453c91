#!/bin/sh
# Makes a release in build/release/VERSION (or $1): .deb and .rpm for amd64 and
# arm64, one bill of materials (CycloneDX) for each program and architecture, the
# sources, SHA256SUMS, and a signature over that. The same commit, version and
# key give the same bytes.
#
#	RELEASE_KEY=FILE packaging/release.sh [DIRECTORY]
#
# RELEASE_KEY is an Ed25519 key of OpenSSH. Its signatures are deterministic, and
# everybody who has ssh-keygen can verify them (see README.md). The version is
# that of the tag vX.Y.Z on the commit; VERSION=X.Y.Z builds without one, for
# trying. QUITTANCE_ARCHS and QUITTANCE_PROGRAMS are those of build.sh. What comes
# before a tag is in packaging/RELEASING.md.
set -eu

cd "$(dirname "$0")/.."

fail() {
	echo "release: $1" >&2
	exit 1
}

if [ -z "${VERSION:-}" ]; then
	[ -z "$(git status --porcelain)" ] ||
		fail "the tree has changes that are not committed: commit or remove them (git status), or try with VERSION=X.Y.Z"
	tag=$(git describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null) ||
		fail "the commit has no tag vX.Y.Z: git tag it, or try with VERSION=X.Y.Z"
	VERSION=${tag#v}
	# Users come from every version that was released. A candidate promises nothing.
	for released in $(git tag --list 'v[0-9]*' | grep -v -- -); do
		packaging/fixtures.sh -check "$released" || exit 1
	done
	case $VERSION in
	*-*) ;;
	*) grep -q "^## $VERSION\( \|\$\)" CHANGELOG.md || fail "CHANGELOG.md has no heading \"## $VERSION\"" ;;
	esac
fi
case $VERSION in
*[!0-9A-Za-z.~+-]* | [!0-9]*) fail "the version $VERSION must begin with a digit and have letters, digits and . ~ + - only" ;;
esac
# A candidate sorts before its release for dpkg and rpm: 1.0.0-rc1 is 1.0.0~rc1.
VERSION=$(echo "$VERSION" | tr - '~')
[ -n "${RELEASE_KEY:-}" ] || fail "RELEASE_KEY must name the private key to sign with: ssh-keygen -t ed25519 makes one"
[ -r "$RELEASE_KEY" ] || fail "the key $RELEASE_KEY cannot be read"
case $(ssh-keygen -y -f "$RELEASE_KEY" </dev/null | cut -d ' ' -f 1) in
ssh-ed25519) ;;
*) fail "the key $RELEASE_KEY is not an Ed25519 key that opens without a passphrase" ;;
esac

. packaging/toolchain.sh
umask 022

out=${1:-build/release/$VERSION}
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ -z "$(ls -A "$out")" ] || fail "$out is not empty"
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
trap 'exit 130' INT TERM

QUITTANCE_VERSION=$VERSION QUITTANCE_ARCHS=${QUITTANCE_ARCHS:-amd64 arm64} QUITTANCE_BINARIES=$programs packaging/build.sh "$out"
for program in "$programs"/*; do
	name=$(basename "$program")
	go run ./packaging/sbom -program "$program" -name "quittance-${name%_*}" -version "$VERSION" \
		-out "$out/quittance-${name%_*}_${VERSION}_${name##*_}.cdx.json"
done
git -c tar.umask=0002 archive --format=tar --prefix="quittance-$VERSION/" HEAD | gzip -9n >"$out/quittance-$VERSION.tar.gz"

cd "$out"
find . -type f ! -name 'SHA256SUMS*' | sed 's|^\./||' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS
ssh-keygen -Y sign -q -f "$RELEASE_KEY" -n quittance-release SHA256SUMS
ls -l
