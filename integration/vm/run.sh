#!/bin/sh
# Runs COMMAND, which is the whole machine's test, from the repository's root; once
# more if the emulated machine stood still (see doc.go) and nothing had failed
# before. What the first run left is then kept in build/vm/first-run. On a failure
# the end of what explains it is shown, and at last the table: run.sh COMMAND …
set -u
dir=build/vm
first=$dir/first-run
mkdir -p "$dir"
rm -rf "$first"
rm -f "$dir"/table.txt "$dir"/stood-still "$dir"/*.log

"$@"
status=$?
# The marker is the test's word that the standstill alone is what failed.
if [ $status -ne 0 ] && [ -f "$dir/stood-still" ]; then
	mkdir "$first"
	for file in "$dir"/table.txt "$dir"/*.log; do
		[ ! -f "$file" ] || mv "$file" "$first/"
	done
	rm "$dir/stood-still"
	[ ! -f "$first/table.txt" ] || cat "$first/table.txt"
	echo "the emulated machine stood still (see integration/vm/doc.go): all of it once more; what is left of it is in $first"
	"$@"
	status=$?
fi
if [ $status -ne 0 ]; then
	for file in "$dir"/console.log "$dir"/failure-*.log; do
		[ -f "$file" ] || continue
		echo "== the end of $file"
		tail -n 200 "$file"
	done
fi
[ ! -f "$dir/table.txt" ] || cat "$dir/table.txt"
exit $status
