. ../shell/json.sh
. ../shell/names.sh
born=@born@ node=@node@ limit_s=@limit_s@ image=@image@ containers=@containers@
docker() { # as root where the machine is ours: the user may not be a member of Docker's group yet
    if [ "$(head -n 1 "$born" 2>/dev/null)" = "$node" ] && [ "$(id -u)" != 0 ]; then
        timeout -k 1 "$limit_s" sudo -n docker "$@" </dev/null >/dev/null 2>&1
    else
        timeout -k 1 "$limit_s" docker "$@" </dev/null >/dev/null 2>&1
    fi
}
checked() {
    names "$containers" | while read -r name; do
        [ ! -e "$containers/$name/checked" ] || echo "$name"
    done
}
state=absent has_image=false member=false nvidia=false sif=false
if command -v docker >/dev/null 2>&1; then
    state=silent
    if docker version; then
        state=works
        ! docker image inspect "$image" || has_image=true
    fi
fi
if [ "$(id -u)" = 0 ] || getent group docker 2>/dev/null | sed 's/.*://' | tr ',' '\n' | grep -qxF "$(id -un)"; then
    member=true
fi
if command -v nvidia-ctk >/dev/null 2>&1 || command -v nvidia-container-runtime-hook >/dev/null 2>&1; then
    nvidia=true
fi
apptainer=$(command -v apptainer 2>/dev/null) || apptainer=
[ ! -e @sif@ ] || sif=true
printf '{"docker":"%s","member":%s,"nvidia":%s,"apptainer":%s,"image":%s,"sif":%s,"checked":[%s]}\n' \
    "$state" "$member" "$nvidia" "$(text "$apptainer")" "$has_image" "$sif" "$(checked | texts)"
