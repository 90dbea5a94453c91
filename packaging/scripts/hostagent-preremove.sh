#!/bin/sh
# Removal, not upgrade: refuse while workers live, because nobody would retire
# them afterwards.
set -eu

# dpkg: "remove" or "upgrade"; rpm: 0 for the last removal.
case "${1:-}" in
remove | 0) ;;
*) exit 0 ;;
esac

for root in /sys/fs/cgroup /sys/fs/cgroup/memory; do
	for workers in "$root/system.slice/quittance-workers.service" "$root/quittance"; do
		for worker in "$workers"/????????????????????????????????; do
			if [ -d "$worker" ]; then
				echo "quittance-hostagent: containers are still allocated on this node." >&2
				echo "Retire them first: agentctl allocations; agentctl retire NUMBER --reason removal" >&2
				exit 1
			fi
		done
	done
done

if [ -d /run/systemd/system ]; then
	systemctl disable --now quittance-hostagent.service quittance-hostagent.socket
	systemctl disable quittance-workers.service
	# RefuseManualStop keeps administrators from it; here nothing lives in it.
	systemctl kill quittance-workers.service || true
fi
