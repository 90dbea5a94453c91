#!/bin/sh
# After the files are there: the group, the socket's directory, the first
# ledger, the units. Workers of an older version go on meanwhile.
set -eu

# dpkg calls this too when a removal or an upgrade was refused: the one must
# leave the agent running, the other has touched nothing.
case "${1:-}" in
abort-upgrade) exit 0 ;;
esac

if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers quittance-hostagent.conf
elif ! getent group quittance >/dev/null; then
	groupadd --system quittance
fi
if [ ! -d /var/lib/quittance ]; then
	mkdir -m 0700 /var/lib/quittance
fi

if [ -d /run/systemd/system ]; then
	# The first installation on a running machine makes the ledger and the host
	# key. A machine that had a ledger is never given a new one here: hostagent
	# init refuses by its marker too.
	if [ ! -e /var/lib/quittance/ledger ] && [ ! -e /var/lib/quittance.created ]; then
		hostagent init
	fi
	systemd-tmpfiles --create quittance-hostagent.conf
	systemctl daemon-reload
	systemctl enable quittance-hostagent.socket quittance-hostagent.service quittance-workers.service
	systemctl start quittance-workers.service quittance-hostagent.socket
	# An upgrade restarts the agent under running workers; they do not notice. An
	# agent that does not start is the administrator's to look at: it is no reason
	# to leave the package half installed.
	if [ -e /var/lib/quittance/ledger ]; then
		systemctl restart quittance-hostagent.service ||
			echo "quittance-hostagent: the agent does not start. See: journalctl -u quittance-hostagent" >&2
	else
		echo "quittance-hostagent: this machine had a ledger, which is gone. Restore /var/lib/quittance," >&2
		echo "or begin a new generation with: hostagent ledger abandon" >&2
	fi
elif [ ! -e /var/lib/quittance/ledger ]; then
	# An image that is being built, or a machine without systemd: a key that is
	# part of an image would be on every machine made from it.
	echo "quittance-hostagent: run hostagent init once on the machine itself." >&2
fi
