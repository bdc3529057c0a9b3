. ../shell/apt.sh
apt_get update
apt_get install --no-install-recommends nfs-common
