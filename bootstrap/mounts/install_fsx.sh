# A client is built for one kernel: docs.aws.amazon.com/fsx/latest/LustreGuide/install-lustre-client.html
. ../shell/apt.sh
release=@release@
apt_get update
apt_get install --no-install-recommends ca-certificates curl
key=/usr/share/keyrings/fsx-ubuntu-public-key.asc
curl -fsS --retry 3 --max-time 60 -o "$key" \
    https://fsx-lustre-client-repo-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc
echo "deb [signed-by=$key] https://fsx-lustre-client-repo.s3.amazonaws.com/ubuntu $release main" \
    >/etc/apt/sources.list.d/fsxlustreclientrepo.list
apt_get update
apt_get install "lustre-client-modules-$(uname -r)"
modprobe lustre
