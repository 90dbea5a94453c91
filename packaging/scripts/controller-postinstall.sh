#!/bin/sh
# After the files are there: the user and the unit. The service is not started:
# it needs lanes.history and offerings, which are the administrator's choice.
set -eu

# dpkg calls this too when an upgrade was refused: nothing was touched then.
case "${1:-}" in
abort-upgrade) exit 0 ;;
esac

if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers quittance-controller.conf
else
	getent group quittance >/dev/null || groupadd --system quittance
	getent passwd quittance-controller >/dev/null ||
		useradd --system --user-group --groups quittance --home-dir /var/lib/quittance-controller --shell /usr/sbin/nologin quittance-controller
fi

if [ -d /run/systemd/system ]; then
	systemd-tmpfiles --create quittance-controller.conf
	systemctl daemon-reload
	# This waits until the controller is ready. One that does not start is the
	# administrator's to look at: it is no reason to leave the package half installed.
	systemctl try-restart quittance-controller.service ||
		echo "quittance-controller: does not start. See: journalctl -u quittance-controller" >&2
fi
