#!/bin/sh
# Removal, not upgrade: stop the service. Its attempts stay in its state
# directory and are settled by the next installation.
set -eu

case "${1:-}" in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl disable --now quittance-controller.service
fi
