#!/bin/sh
# Purge removes the ledger and the host key, and keeps the marker that a ledger
# existed: a later installation must not hand numbers out a second time. Remove
# /var/lib/quittance by hand to forget even that.
set -eu

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
if [ "${1:-}" = purge ]; then
	rm -rf /var/lib/quittance/ledger /var/lib/quittance/logs
	rm -f /var/lib/quittance/host.key
fi
