# What is built here is signed with a key that the firmware does not know.
can_build() {
    if mokutil --sb-state 2>/dev/null | grep -q 'SecureBoot enabled'; then
        echo "Secure Boot is on, and loads no driver that is built on the machine: use an image with it, or turn that off" >&2
        exit 1
    fi
}
