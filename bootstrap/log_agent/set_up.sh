# It may fail, or take too long: the node keeps its logs, and the agent ships them, too.
limit_s=@limit_s@ file=@file@ key=@key@ unit=@unit@
if timeout -k 10 "$limit_s" /bin/sh -eu -c @install@; then
    mkdir -p "$(dirname "$file")"
    echo "$key" >"$file"
else
    echo "$unit does not ship this node's logs; training goes on" >&2
fi
