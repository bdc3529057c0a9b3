# NVIDIA's guide to the toolkit, "With apt".
. ../shell/apt.sh
apt_get install --no-install-recommends ca-certificates curl gnupg
keyring=/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg
curl -fsSL --retry 3 --max-time 60 https://nvidia.github.io/libnvidia-container/gpgkey |
    gpg --batch --yes --dearmor -o "$keyring"
curl -fsSL --retry 3 --max-time 60 \
    https://nvidia.github.io/libnvidia-container/stable/deb/nvidia-container-toolkit.list |
    sed "s#deb https://#deb [signed-by=$keyring] https://#" >/etc/apt/sources.list.d/nvidia-container-toolkit.list
apt_get update
apt_get install nvidia-container-toolkit
nvidia-ctk runtime configure --runtime=docker >/dev/null
systemctl restart docker
