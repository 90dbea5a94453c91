#!/bin/sh
# Before any file is replaced: a controller is never put over an attempt store
# that a newer one wrote.
set -eu

# The newest format that the controller of this package reads.
FORMAT=1

case "${1:-}" in
abort-*) exit 0 ;;
esac

state=
if [ -r /etc/quittance/controller.toml ]; then
	state=$(sed -n "s/^[[:space:]]*state_dir[[:space:]]*=[[:space:]]*[\"']\([^\"']*\)[\"'].*/\1/p" /etc/quittance/controller.toml)
fi
scope=${state:-/var/lib/quittance-controller}/attempts/scope
[ -f "$scope" ] || exit 0

format=$(sed -n '1s/^{"format":"quittance-store","v":\([0-9]*\),.*/\1/p' "$scope")
if [ "${format:-0}" -gt "$FORMAT" ]; then
	echo "quittance-controller: the attempt store in ${scope%/scope} has format $format, and the controller of this package reads formats up to $FORMAT." >&2
	echo "Keep the installed version, or install a newer one. Nothing was changed." >&2
	exit 1
fi
