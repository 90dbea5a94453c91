#!/bin/sh
# Purge removes the ledger and the host key, and keeps the marker
# /var/lib/quittance.created that a ledger existed: a later installation must not
# hand numbers out a second time. Remove the marker by hand to forget even that.
set -eu

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
if [ "${1:-}" = purge ]; then
	rm -rf /var/lib/quittance
fi
