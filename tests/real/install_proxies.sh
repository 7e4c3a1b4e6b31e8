#!/bin/sh
# Installs HAProxy and nginx from Debian's packages, for the staged migration. What is there already is kept.
# Needs root. Neither is started: the tests start their own, with their own configuration.
set -eu

command -v haproxy >/dev/null && command -v nginx >/dev/null && exit 0
export DEBIAN_FRONTEND=noninteractive
# No service is to listen on this machine, whatever the packages want.
[ -e /usr/sbin/policy-rc.d ] || { printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d; }
apt-get -qq update
apt-get -qq install -y --no-install-recommends haproxy nginx-light
