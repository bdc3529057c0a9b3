# Makes a folder that is the user's. As the user first: root is `nobody` on most NFS servers. As root where only root may
# write, on a new file system for instance. A node trains without a folder that is not needed.
set -u
folder=@folder@ user=@user@ needed=@needed@
[ ! -d "$folder" ] || exit 0
if command -v runuser >/dev/null; then set -- runuser -u "$user" --; else set -- sudo -n -u "$user" --; fi
! "$@" mkdir -p "$folder" 2>/dev/null || exit 0
! { mkdir -p "$folder" && chown "$user:" "$folder"; } || exit 0
[ "$needed" = false ]
