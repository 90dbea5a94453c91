#!/bin/sh
# After the files are there: the group, the socket's directory, the first
# ledger, the units. Workers of an older version go on meanwhile.
set -eu

if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers quittance-hostagent.conf
elif ! getent group quittance >/dev/null; then
	groupadd --system quittance
fi
install -d -m 0755 -o root -g root /etc/quittance /etc/quittance/profiles
install -d -m 0700 -o root -g root /var/lib/quittance

# The first installation makes the ledger and the host key. A machine that had a
# ledger is never given a new one here: hostagent init refuses by its marker too.
if [ ! -e /var/lib/quittance/ledger ] && [ ! -e /var/lib/quittance.created ]; then
	/usr/sbin/hostagent init
fi

if [ -d /run/systemd/system ]; then
	systemd-tmpfiles --create quittance-hostagent.conf
	systemctl daemon-reload
	systemctl enable quittance-hostagent.socket quittance-hostagent.service quittance-workers.service
	systemctl start quittance-workers.service quittance-hostagent.socket
	# An upgrade restarts the agent under running workers; they do not notice.
	systemctl restart quittance-hostagent.service
fi
