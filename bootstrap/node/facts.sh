. ../shell/json.sh
. ../shell/names.sh
cd /
root=@root@
python=$(command -v @python@ 2>/dev/null) || python=
version='' torch=none
if [ -n "$python" ]; then
    found=$("$python" -c 'import sys, importlib.util as util
print(*sys.version_info[:3], sep=",", end=" ")
torch = "none"
if util.find_spec("torch"):
    try:
        from importlib import metadata
        torch = metadata.version("torch")
    except Exception:
        torch = "unknown"
print(torch)' 2>/dev/null) || python='' found=''
    version=${found% *} torch=${found#* }
fi
place=$root
while [ ! -d "$place" ]; do place=$(dirname "$place"); done
free_mb=$(($(stat -f -c '%a * %S' "$place") / 1048576))
printf '{"user":%s,"home":%s,"boot_id":%s,"free_mb":%s,"python":%s,"python_version":[%s],"torch":%s,' \
    "$(text "$(id -un)")" "$(text "$HOME")" "$(text "$(cat /proc/sys/kernel/random/boot_id)")" \
    "$free_mb" "$(text "$python")" "$version" "$(text "${torch:-none}")"
printf '"codes":[%s],"trainers":[%s],"prepared":[%s]}\n' \
    "$(names "$root/code" | texts)" "$(names "$root/trainer" | texts)" "$(names "$root/prepared" | texts)"
