# The distribution's own Docker: no further repository to trust. Members of its group are root on this machine, as the
# user is anyway.
. ../shell/apt.sh
apt_get update
apt_get install --no-install-recommends docker.io
systemctl enable --now docker
. ./join_group.sh
