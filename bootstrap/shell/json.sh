# Prints JSON.
text() {
    case $1 in
    *[!A-Za-z0-9\ ._:/+-]*) printf '"%s"' "$(printf %s "$1" | tr -d '\000-\037' | sed 's/[\\"]/\\&/g')" ;;
    *) printf '"%s"' "$1" ;;
    esac
}
texts() { # each line of stdin as a string, with commas between
    between=
    while IFS= read -r line; do
        printf '%s' "$between"
        text "$line"
        between=,
    done
}
field() { printf '"%s":"%s",' "$1" "$(printf %s "$2" | base64 -w0)"; } # NAME TEXT, the text in base64
