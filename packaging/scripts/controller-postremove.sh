#!/bin/sh
# Purge keeps jobs, results and attempts: they are users' property and settle
# what the node still owes. QUITTANCE_FORGET=yes in dpkg's environment removes
# them too.
set -eu

case "${1:-}" in
remove | purge | 0) ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
if [ "${1:-}" = purge ] && [ -e /var/lib/quittance-controller ]; then
	if [ "${QUITTANCE_FORGET:-}" = yes ]; then
		rm -rf /var/lib/quittance-controller
	else
		echo "quittance-controller: kept /var/lib/quittance-controller with its jobs, results and attempts." >&2
	fi
fi
