#!/bin/sh
# Runs the long form of every test, one part after the other, and ends with one
# table: all.sh [PART …]. A part that fails does not keep the next from running.
# Each part's whole output is kept in build/test-all/PART.log.
#
#   test      every lane with every row: the crash matrix whole, two minutes
#             without the job service in each phase and one without the engine,
#             1,000 jobs and 2,000 allocations in a row, 200 kills for memory,
#             properties of other cases than usual (their seed is in the log)
#   engines   the engine and crash lanes on the current containerd 2.x
#   packages  all packages under lintian and rpmlint, and a whole release of both
#             architectures
#   fuzz      every fuzz target for a minute
#   soak      1,000 jobs through lossy networks and random kills
#   vm        the whole machine
#   vm-soak   the whole machine with 30 power cuts and 200 kills
set -u
cd "$(dirname "$0")/../.."
make=${MAKE:-make}
lanes="${GO:-go} run ./integration/lanes -whole -timeout 3h"
logs=build/test-all
mkdir -p "$logs"

part() {
	case $1 in
	test) $make setup lint && seed=$(date +%s) && echo "QUITTANCE_SEED=$seed" && QUITTANCE_SEED=$seed QUITTANCE_OUTAGE=2m QUITTANCE_SILENCE=1m QUITTANCE_MANY=2000 QUITTANCE_KILLED=200 QUITTANCE_JOBS=1000 $lanes -race unit unit engine crash e2e ;;
	engines)
		QUITTANCE_CONTAINERD=$(integration/setup/containerd2.sh) || return
		export QUITTANCE_CONTAINERD
		echo "containerd: $("$QUITTANCE_CONTAINERD" --version)"
		$make setup && $lanes engine crash
		;;
	packages)
		$make packages-check || return
		release=$(mktemp -d) && ssh-keygen -q -t ed25519 -N '' -C '' -f "$release/key" &&
			VERSION=0.0.1 RELEASE_KEY=$release/key packaging/release.sh "$release/files"
		status=$?
		rm -rf "$release"
		return $status
		;;
	fuzz) $make fuzz FUZZTIME=1m ;;
	soak | vm | vm-soak) $make "$1" ;;
	*)
		echo "no part of this name: $1" >&2
		return 2
		;;
	esac
}

# table is what the crash matrix wrote, when the part ran it.
table() {
	if [ -f build/crash/matrix.txt ]; then
		cat build/crash/matrix.txt
		rm build/crash/matrix.txt
	fi
}

[ $# -gt 0 ] || set -- test engines packages fuzz soak vm vm-soak
failed=0
summary=
for name; do
	rm -f build/crash/matrix.txt
	began=$(date +%s)
	# The status of a pipe is its last command's: the part leaves its own in a file.
	{
		(part "$name")
		echo $? >"$logs/$name.status"
		table
	} 2>&1 | tee "$logs/$name.log"
	status=$(cat "$logs/$name.status")
	count=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$logs/$name.log" | tail -n 1)
	case $status:$count in
	0:) count="passed" ;;
	0:*) ;;
	*) failed=1 count="FAILED (${count:-status $status})" ;;
	esac
	matrix=$(grep '^crash matrix of the host:' "$logs/$name.log" | tail -n 1)
	summary="$summary$(printf '%-8s %5d min  %s' "$name" $((($(date +%s) - began + 59) / 60)) "$count")
${matrix:+                    $matrix
}"
done
printf '\n%s' "$summary"
exit $failed
