. ./wait_for_apt.sh
set -eu
apt-mark hold @packages@ >/dev/null
