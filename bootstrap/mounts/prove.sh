# Does to a file all that a checkpoint needs: writes it, forces it to the disk, renames it, reads it back. In a process
# that is left behind when it hangs.
. ../shell/within.sh
set -u
folder=@folder@ node=@node@ limit_s=@limit_s@ key=@key@
file="$folder/.spotsup-proof-$node"
status=0
# shellcheck disable=SC2016 # the inner shell's own parameters
within "$limit_s" sh -c '
    echo "$2" >"$1.new" && sync "$1.new" && mv "$1.new" "$1" && [ "$(cat "$1")" = "$2" ] && rm "$1"
' sh "$file" "$key" || status=$?
if [ "$status" -eq 124 ]; then
    echo "writing a file to $folder did not end within $limit_s s: its server hangs" >&2
    exit 1
elif [ "$status" -ne 0 ]; then
    echo "a file cannot be written to $folder, renamed and read back; is it $(id -un)'s, and is there room?" >&2
    ls -ld "$folder" >&2
    df -hP "$folder" >&2
    exit 1
fi
. ./note.sh
