#!/bin/sh
# Purge removes the ledger and the host key, and keeps the marker
# /var/lib/quittance.created that a ledger existed: a later installation must not
# hand numbers out a second time. QUITTANCE_FORGET=yes in dpkg's environment
# removes the marker too. rpm has no purge: state is removed by hand there.
set -eu

# dpkg: "remove", "purge", and others while it exchanges or restores a version;
# rpm: 0 for the last removal.
case "${1:-}" in
remove | purge | 0) ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
if [ "${1:-}" = purge ]; then
	rm -rf /var/lib/quittance
	if [ "${QUITTANCE_FORGET:-}" = yes ]; then
		rm -f /var/lib/quittance.created
	elif [ -e /var/lib/quittance.created ]; then
		echo "quittance-hostagent: kept /var/lib/quittance.created, which remembers that this machine had a ledger." >&2
	fi
fi
