#!/bin/sh
# After the files are there: the user and the unit. The service is not started:
# it needs lanes.history and offerings, which are the administrator's choice.
set -eu

if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers quittance-controller.conf
else
	getent group quittance >/dev/null || groupadd --system quittance
	getent passwd quittance-controller >/dev/null ||
		useradd --system --user-group --groups quittance --home-dir /var/lib/quittance-controller --shell /usr/sbin/nologin quittance-controller
fi
install -d -m 0755 -o root -g root /etc/quittance /etc/quittance/offerings

if [ -d /run/systemd/system ]; then
	systemd-tmpfiles --create quittance-controller.conf
	systemctl daemon-reload
	systemctl try-restart quittance-controller.service
fi
