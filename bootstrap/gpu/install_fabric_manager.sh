# Its version has to be the driver's own, to the last digit.
. ../shell/apt.sh
version=@version@
apt_get update
apt_get install --no-install-recommends "nvidia-fabricmanager-${version%%.*}=$version-*"
. ./start_fabric_manager.sh
