set -eu
usermod -aG docker @user@
