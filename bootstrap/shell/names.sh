names() { # FOLDER: the names in it that are ours, which are hex digits; a temporary folder is not complete
    (
        cd "$1" 2>/dev/null || exit 0
        for name in *; do
            case $name in *[!0-9a-f]*) ;; *) echo "$name" ;; esac
        done
    )
}
