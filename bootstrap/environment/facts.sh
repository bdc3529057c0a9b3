. ../shell/json.sh
. ../shell/names.sh
cache=@cache@
uv=$(command -v uv 2>/dev/null) || uv=$HOME/.local/bin/uv
[ -x "$uv" ] || uv=
built() {
    names "$cache" | while read -r name; do
        [ ! -x "$cache/$name/bin/python" ] || echo "$name"
    done
}
printf '{"complete":[%s],"shipped":[%s],"uv":%s,"machine":"%s"}\n' \
    "$(built | texts)" "$(names "$cache/uv" | texts)" "$(text "$uv")" "$(uname -m)"
