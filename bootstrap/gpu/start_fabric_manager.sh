set -eu
systemctl unmask nvidia-fabricmanager
systemctl enable --now nvidia-fabricmanager
