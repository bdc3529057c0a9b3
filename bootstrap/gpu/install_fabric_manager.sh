# Its version has to be the driver's own, to the last digit. NVIDIA's repository has no branch in the name from 580 on.
. ../shell/apt.sh
version=@version@
apt_get update
package=nvidia-fabricmanager-${version%%.*}
apt_get -s install --no-install-recommends "$package=$version-*" 2>/dev/null || package=nvidia-fabricmanager
apt_get install --no-install-recommends "$package=$version-*"
. ./start_fabric_manager.sh
