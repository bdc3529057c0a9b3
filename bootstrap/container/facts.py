"""What can run containers, and whether the job's image is there. Nothing is looked for where the job wants none."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from bootstrap.model import Paths, Setup, shell_path
from bootstrap.system.facts import BORN_FILE
from bootstrap.templates import fill

LIMIT_S = 20  # dockerd that hangs, or an image store on a slow disk


@dataclass(frozen=True, slots=True)
class Containers:
    """`docker`: absent, silent (the program is there, its daemon does not answer us) or works; asked as root where the
    machine is ours. `member`: whether the user may speak to it without being root. `nvidia`: whether NVIDIA's toolkit
    is there. `apptainer`: its path, "" for none. `image`: whether Docker has the job's image; `sif`: whether the cache
    has it for Apptainer. `checked`: names of those whose interpreter was found to have torch.
    """

    docker: str = "absent"
    member: bool = False
    nvidia: bool = False
    apptainer: str = ""
    image: bool = False
    sif: bool = False
    checked: frozenset[str] = frozenset()


_SCRIPT = r"""
docker() {
    if [ "$(head -n 1 @born@ 2>/dev/null)" = @node@ ] && [ "$(id -u)" != 0 ]; then
        timeout -k 1 @limit@ sudo -n docker "$@" </dev/null >/dev/null 2>&1
    else
        timeout -k 1 @limit@ docker "$@" </dev/null >/dev/null 2>&1
    fi
}
state=absent image=false member=false nvidia=false sif=false
if command -v docker >/dev/null 2>&1; then
    state=silent
    if docker version; then
        state=works
        ! docker image inspect @image@ || image=true
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
printf '{"docker":"%s","member":%s,"nvidia":%s,"apptainer":"%s","image":%s,"sif":%s,"checked":[' \
    "$state" "$member" "$nvidia" "$(printf %s "$apptainer" | sed 's/[\\"]/\\&/g')" "$image" "$sif"
cd @containers@ 2>/dev/null && {
    between=
    for name in *; do
        case $name in *[!0-9a-f]*) continue ;; esac
        [ -e "$name/checked" ] || continue
        printf '%s"%s"' "$between" "$name"
        between=,
    done
}
printf ']}\n'
"""


def containers_script(setup: Setup) -> str:
    """Prints one JSON object; an empty one where the job wants no container."""
    if setup.image is None:
        return "echo '{}'\n"
    values = {
        "born": shlex.quote(BORN_FILE),
        "node": shlex.quote(setup.node),
        "limit": str(LIMIT_S),
        "image": shlex.quote(str(setup.image)),
        "sif": shell_path(sif_of(setup)),
        "containers": shell_path(Paths(setup.root, setup.node).containers),
    }
    return fill(_SCRIPT, **values)


def sif_of(setup: Setup) -> str:
    """Where the image lies for Apptainer: in the cache, which nodes may share."""
    assert setup.image is not None
    return f"{setup.cache_folder}/{setup.image.name}.sif"


def containers_facts(value: Any) -> dict[str, Any]:
    """The field of Facts that this section knows. Raises TypeError."""
    return {"containers": Containers(**{**value, "checked": frozenset(map(str, value.get("checked", ())))})}
