#!/bin/sh
# Looks at built packages with lintian and rpmlint, which it installs where they
# are missing (Debian or Ubuntu, as root): any finding that no override explains
# fails.
#
#	packaging/lint/lint.sh [DIRECTORY]
set -eu

cd "$(dirname "$0")/../.."
out=${1:-build/packages}
integration/setup/install.sh lintian rpmlint

lintian --allow-root --tag-display-limit 0 --fail-on error,warning "$out"/quittance-*.deb
rpmlint --strict -c packaging/lint/rpmlint.toml "$out"/quittance-*.rpm
