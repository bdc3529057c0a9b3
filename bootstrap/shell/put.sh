# Reads files from stdin, one after the other; each appears complete or not at all. A file that was cut short, because
# the connection broke, has another checksum and is removed.
set -eu
umask 077
nonce=@nonce@
scratch=
trap '[ -z "$scratch" ] || rm -f "$scratch"' EXIT
put() { # PATH MODE BYTES SHA256
    mkdir -p "${1%/*}"
    chmod 700 "${1%/*}"
    scratch=$1.$nonce.part
    head -c "$3" >"$scratch"
    found=$(sha256sum <"$scratch")
    if [ "${found%% *}" != "$4" ]; then
        echo "the sha256 of $1 is ${found%% *} on the node, $4 here" >&2
        exit 1
    fi
    chmod "$2" "$scratch"
    mv -f "$scratch" "$1"
    scratch=
}
set -- @files@
while [ $# -gt 0 ]; do
    put "$1" "$2" "$3" "$4"
    shift 4
done
