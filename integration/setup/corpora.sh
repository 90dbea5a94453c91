#!/bin/sh
# Keeps what fuzzing found: takes the newest inputs of every target from Go's
# cache into its package's testdata/fuzz, where `go test` replays them and the
# next fuzzing begins. Each of them reached code that none before it had. A
# target has at most $most committed inputs, of at most $bytes bytes each; none
# that is there is removed. Inputs that name a place on this machine are left.
set -eu
cd "$(dirname "$0")/../.."
go=${GO:-go}
most=30
bytes=4096

cache=$($go env GOCACHE)/fuzz
module=$($go list -m)
for package in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u); do
	for target in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$package"/*_test.go | cut -d ' ' -f 2); do
		found=$cache/$module/${package#./}/$target
		kept=$package/testdata/fuzz/$target
		mkdir -p "$kept"
		have=$(find "$kept" -type f | wc -l)
		added=0
		if [ -d "$found" ]; then
			for name in $(ls -t "$found"); do
				[ "$((have + added))" -lt "$most" ] || break
				[ "$(wc -c <"$found/$name")" -le "$bytes" ] || continue
				[ ! -e "$kept/$name" ] || continue
				if grep -qE '/(home|root|tmp|work|var/tmp)/' "$found/$name"; then
					continue
				fi
				cp "$found/$name" "$kept/$name"
				added=$((added + 1))
			done
		fi
		echo "$package $target: $added added, $((have + added)) committed"
	done
done
