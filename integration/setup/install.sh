#!/bin/sh
# Installs the Debian or Ubuntu packages that the tests need and that are
# missing, and says which. Run again it does nothing.
#
#	integration/setup/install.sh [PACKAGE …]    and these too
#
#   containerd runc catatonit   the engine, and the init in front of workers
#   mmdebstrap                  the root file system of the OCR worker's image, and a
#                               machine to install our packages on
#   rpm                         the same for our .rpm
#   openssh-client              signatures of releases
#   e2fsprogs fuse3             disks for the power cuts
#   postgresql                  the job service's other database, started privately
#   sqlite3                     its backup, as the runbook job-database has it
#   gcc libc6-dev               the race detector
#   iproute2                    a network namespace for the controller's container
#   git ca-certificates curl    sources, TLS, and the tour in the README
set -eu
needed="containerd runc catatonit mmdebstrap rpm openssh-client e2fsprogs fuse3 postgresql sqlite3 gcc libc6-dev iproute2 git ca-certificates curl $*"

missing=
for package in $needed; do
	# containerd and runc may also come from another package or a tarball.
	case $package in
	containerd | runc | catatonit)
		if PATH=$PATH:/usr/sbin:/sbin command -v "$package" >/dev/null; then
			continue
		fi
		;;
	esac
	state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
	if [ "$state" != installed ]; then
		missing="$missing $package"
	fi
done
if [ -z "$missing" ]; then
	exit 0
fi
if ! command -v apt-get >/dev/null; then
	echo "setup: this is not Debian or Ubuntu; install by hand:$missing" >&2
	exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "setup: run as root, or install first:$missing" >&2
	exit 1
fi
echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive

# Packages start their services when they are installed. The tests start their
# own, privately: nothing of the distribution's is to run because of them.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap 'rm -f "$policy"' EXIT
	trap 'exit 130' INT TERM
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 0755 "$policy"
fi
apt-get -q update
# shellcheck disable=SC2086 # a list of packages
apt-get -q -y install --no-install-recommends $missing
