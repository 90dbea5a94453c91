#!/bin/sh
# Sets up the freshly installed system below $1 for the tests.
set -eu
root=$1

# What the tests bring lies on the second disk; its program is the only client
# of the port to the tests.
mkdir "$root/payload"
cat >"$root/etc/fstab" <<'EOF'
/dev/vda / ext4 rw,noatime 0 0
/dev/vdb /payload ext4 ro,nofail 0 0
EOF
cat >"$root/etc/systemd/system/quittance-vm.service" <<'EOF'
[Unit]
Description=Guest side of the virtual machine's tests
RequiresMountsFor=/payload
After=multi-user.target containerd.service
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=/payload/guest
Restart=on-failure
RestartSec=1s
OOMScoreAdjust=-1000
TimeoutStopSec=5s

[Install]
WantedBy=graphical.target
EOF
mkdir -p "$root/etc/systemd/system/graphical.target.wants"
ln -s ../quittance-vm.service "$root/etc/systemd/system/graphical.target.wants/"
ln -sf /lib/systemd/system/graphical.target "$root/etc/systemd/system/default.target"

echo quittance-vm >"$root/etc/hostname"
printf '127.0.0.1 localhost quittance-vm\n' >"$root/etc/hosts"
# One machine, one identity from its first boot on: no first-boot questions.
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"

# What ignores its end does not hold a shutdown for a minute and a half.
mkdir -p "$root/etc/systemd/system.conf.d"
printf '[Manager]\nDefaultTimeoutStopSec=20s\n' >"$root/etc/systemd/system.conf.d/vm.conf"

# The journal is kept over power cuts: it explains them.
mkdir -p "$root/var/log/journal"

# Nothing of the distribution's own runs beside what is tested.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
	e2scrub_reap.service systemd-pstore.service getty@tty1.service serial-getty@ttyS0.service \
	systemd-networkd-wait-online.service systemd-tmpfiles-clean.timer; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
# The OOM daemon is started by the check that is about it.
rm -f "$root"/etc/systemd/system/*.wants/systemd-oomd.* "$root/etc/systemd/system/dbus-org.freedesktop.oom1.service"
rm -rf "$root/var/cache/apt/archives"/*.deb "$root/var/lib/apt/lists"/*
