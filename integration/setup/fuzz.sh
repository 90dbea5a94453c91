#!/bin/sh
# Runs every fuzz target of the repository for the time given, one after the
# other: fuzz.sh 10s. New inputs are kept in Go's cache; one that fails is
# written to the package's testdata, to be committed with its fix.
set -eu
time=${1:?"usage: fuzz.sh DURATION"}
passed=0
failed=0
targets=$(grep -rho --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . -H | sort -u)
if [ -z "$targets" ]; then
	echo "no fuzz target was found" >&2
	exit 1
fi
for line in $targets; do
	case $line in
	*_test.go:func)
		file=${line%:func}
		continue
		;;
	esac
	echo "$(dirname "$file") $line"
	if ${GO:-go} test -run '^$' -fuzz "^$line\$" -fuzztime "$time" -fuzzminimizetime 1s "$(dirname "$file")"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
	fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
