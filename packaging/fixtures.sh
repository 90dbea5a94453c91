#!/bin/sh
# Writes what the programs of this tree leave on disk, as fixtures that every
# later version must read: the host agent's ledger, the controller's attempt
# store, and both databases of the job service. It is a step of a release, see
# packaging/RELEASING.md. As root, where make engine and make e2e run.
#
#	packaging/fixtures.sh vX.Y.Z           write them
#	packaging/fixtures.sh -check vX.Y.Z    fail where one is missing, or is not what was tagged
#
# The fixtures of a version that is tagged are never written again.
set -eu

cd "$(dirname "$0")/.."

fail() {
	echo "fixtures: $1" >&2
	exit 1
}

check=
if [ "${1:-}" = -check ]; then
	check=yes
	shift
fi
version=${1:-}
case $version in
v[0-9]*.[0-9]*.[0-9]*) ;;
*) fail "name the version of the release, as vX.Y.Z" ;;
esac
case $version in
*[!v0-9.]*) fail "$version is no version of a release: a candidate promises nothing to later versions" ;;
esac

ledger=hostagent/testdata/released/$version
store=controller/internal/store/testdata/released/$version
jobs=controller/internal/jobs/testdata/released/$version

if [ -n "$check" ]; then
	missing=
	for file in "$ledger/expect.txt" "$ledger/receipts.jsonl" "$ledger/state" "$store/expect.txt" "$store/store" "$jobs/sqlite/answers.json" "$jobs/postgresql/dump.sql"; do
		[ -e "$file" ] || missing="$missing $file"
	done
	[ -z "$missing" ] || fail "missing of $version:$missing (see packaging/RELEASING.md)"
	if [ -n "$(git tag --list "$version")" ]; then
		git diff --quiet "$version" -- "$ledger" "$store" "$jobs" || fail "the fixtures of $version are not those that were tagged: git diff $version -- $ledger $store $jobs"
	fi
	exit 0
fi

[ -z "$(git tag --list "$version")" ] || fail "$version is released: its fixtures are frozen"

# All or nothing: what is there stays until the new ones are whole.
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
trap 'exit 130' INT TERM
mkdir "$new/ledger" "$new/store" "$new/jobs"
go test -tags engine,fixture -count=1 -run '^TestWriteReleased$' ./integration/engine -args -released "$new/ledger"
go test -tags fixture -count=1 -run '^TestWriteExpected$' ./hostagent -args -released "$new/ledger"
go test -tags fixture -count=1 -run '^TestWriteReleased$' ./controller/internal/store -args -released "$new/store"
go test -tags e2e,fixture -count=1 -run '^TestWriteReleased$' ./controller/internal/jobs -args -released "$new/jobs"
rm -rf "$ledger" "$store" "$jobs"
mkdir -p "$(dirname "$ledger")" "$(dirname "$store")" "$(dirname "$jobs")"
cp -R "$new/ledger" "$ledger"
cp -R "$new/store" "$store"
cp -R "$new/jobs" "$jobs"
"packaging/$(basename "$0")" -check "$version"
git status --short -- "$ledger" "$store" "$jobs"
