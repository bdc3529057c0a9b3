add_nvidia_repository() { # DISTRIBUTION: as NVIDIA names it, such as debian12
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    apt_get install --no-install-recommends ca-certificates curl
    curl -fsS --retry 3 --max-time 60 -o "$work/keyring.deb" \
        "https://developer.download.nvidia.com/compute/cuda/repos/$1/x86_64/cuda-keyring_1.1-1_all.deb"
    dpkg -i "$work/keyring.deb" >/dev/null
    apt_get update
}
