#!/bin/sh
# Before any file is replaced: an agent is never put over a ledger that a newer
# one wrote. It could not read it, and the node would stand still.
set -eu

# The newest format that the agent of this package reads.
FORMAT=1

# dpkg: what went wrong with another version is not this one's to refuse.
case "${1:-}" in
abort-*) exit 0 ;;
esac

state=
if [ -r /etc/quittance/hostagent.toml ]; then
	state=$(sed -n "s/^[[:space:]]*state_dir[[:space:]]*=[[:space:]]*[\"']\([^\"']*\)[\"'].*/\1/p" /etc/quittance/hostagent.toml)
fi
state=${state:-/var/lib/quittance}

for segment in "$state"/ledger/*.segment; do
	[ -f "$segment" ] || continue
	# "QLEDGER1", then the format, 32 bits, the lowest first.
	# shellcheck disable=SC2046 # twelve numbers
	set -- $(od -A n -t u1 -N 12 "$segment")
	if [ "$#" -lt 12 ] || [ "$1 $2 $3 $4 $5 $6 $7 $8" != "81 76 69 68 71 69 82 49" ]; then
		continue # prepared, not yet begun
	fi
	shift 8
	format=$(($1 + $2 * 256 + $3 * 65536 + $4 * 16777216))
	if [ "$format" -gt "$FORMAT" ]; then
		echo "quittance-hostagent: the ledger in $state has format $format, and the agent of this package reads formats up to $FORMAT." >&2
		echo "Keep the installed version, or install a newer one. Nothing was changed." >&2
		exit 1
	fi
done
