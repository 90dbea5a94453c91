#!/bin/sh
# Runs fuzz targets, one after the other, and prints what each did:
#
#	fuzz.sh TIME [TARGET...]
#
# TIME is for each target: a duration (10m), or a number of inputs (500x), which
# never ends in the middle of one as a duration may. Without targets it is every
# one of the repository. After a duration new inputs are kept in Go's cache (see
# corpora.sh); a number begins with the committed ones alone and keeps none, so
# that it is the same work everywhere. An input that fails is written to the
# package's testdata, to be committed with its fix.
set -eu
cd "$(dirname "$0")/../.."
go=${GO:-go}
time=${1:?"usage: fuzz.sh TIME [TARGET...]"}
shift
wanted=" $* "

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cache=$($go env GOCACHE)/fuzz
minimize=1s # a find is made smaller before it is kept
case $time in
*x)
	cache=$out/corpora
	minimize=100x
	;;
esac
passed=0
failed=0
for package in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u); do
	targets=$(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$package"/*_test.go | cut -d ' ' -f 2)
	binary=
	for target in $targets; do
		case $wanted in
		"  " | *" $target "*) ;;
		*) continue ;;
		esac
		if [ -z "$binary" ]; then
			binary=$out/fuzz.test
			import=$($go list "$package")
			$go test -c -fuzz . -o "$binary" "$package"
		fi
		echo "$package $target"
		if (cd "$package" && "$binary" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" \
			-test.fuzzminimizetime "$minimize" -test.fuzzcachedir "$cache/$import") >"$out/log" 2>&1; then
			passed=$((passed + 1))
			grep '^fuzz: elapsed' "$out/log" | tail -n 1
		else
			failed=$((failed + 1))
			cat "$out/log"
		fi
	done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
