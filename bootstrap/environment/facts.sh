. ../shell/json.sh
. ../shell/names.sh
cache=@cache@
python=$(command -v @python@ 2>/dev/null) || python=
uv=$(command -v uv 2>/dev/null) || uv=$HOME/.local/bin/uv
if [ ! -x "$uv" ]; then
    uv=
    if [ -n "$python" ] && "$python" -m uv --version >/dev/null 2>&1; then
        uv=module
    fi
fi
built() {
    names "$cache" | while read -r name; do
        [ ! -x "$cache/$name/bin/python" ] || echo "$name"
    done
}
printf '{"complete":[%s],"uv":%s,"machine":"%s"}\n' "$(built | texts)" "$(text "$uv")" "$(uname -m)"
