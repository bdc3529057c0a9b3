# Amazon's installer brings the kernel module, libfabric and NCCL's plugin, and lets sessions lock memory from the next
# one on. It brings Open MPI too, which is not used.
set -eu
export DEBIAN_FRONTEND=noninteractive
file=@file@ kernel=@kernel@
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
curl -fsS --retry 3 --max-time 300 -o efa.tar.gz https://efa-installer.amazonaws.com/aws-efa-installer-latest.tar.gz
tar -xzf efa.tar.gz
cd aws-efa-installer
./efa_installer.sh -y -g >"$work/log" 2>&1 || { tail -n 50 "$work/log" >&2; exit 1; }
mkdir -p "$(dirname "$file")"
echo "$kernel" >"$file"
