"""The scripts of the container step: what brings Docker and the image, and an interpreter that is in a container.

The interpreter is a script that runs the image's python3 with its own arguments, so that whoever starts an interpreter
on the node needs to know nothing of containers.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.container.image import HUB, REGISTRY_PASSWORD, REGISTRY_USER, Image
from bootstrap.errors import STDERR_LINES
from bootstrap.model import Paths
from bootstrap.scripts import APT, seconds
from bootstrap.templates import fill

CONTAINER_VARIABLE = "SPOTSUP_CONTAINER"
"""In the agent's environment: what its launcher's container is called. All others run the interpreter without it."""

ANSWER_S = 20.0  # what Docker gets to say whether the container of a launcher before is still there

# Names that an `env` may not bring past us into a container: they are for the pull alone.
SECRETS = (REGISTRY_USER, REGISTRY_PASSWORD)

# Distributions' own Docker: no repository more to trust. Members of its group are root on this machine, as our user is.
_INSTALL_DOCKER = """
apt_get update
apt_get install --no-install-recommends docker.io
systemctl enable --now docker
"""

_JOIN_GROUP = """
set -eu
usermod -aG docker @user@
"""

# NVIDIA's guide to the toolkit, "With apt".
_INSTALL_TOOLKIT = """
apt_get install --no-install-recommends ca-certificates curl gnupg
keyring=/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg
curl -fsSL --retry 3 --max-time 60 https://nvidia.github.io/libnvidia-container/gpgkey |
    gpg --batch --yes --dearmor -o "$keyring"
curl -fsSL --retry 3 --max-time 60 \\
    https://nvidia.github.io/libnvidia-container/stable/deb/nvidia-container-toolkit.list |
    sed "s#deb https://#deb [signed-by=$keyring] https://#" >/etc/apt/sources.list.d/nvidia-container-toolkit.list
apt_get update
apt_get install nvidia-container-toolkit
nvidia-ctk runtime configure --runtime=docker >/dev/null
systemctl restart docker
"""

# A login is kept for this pull alone, in a folder of its own; the password is on no command line.
_PULL_DOCKER = r"""
set -eu
umask 077
own=@own@ image=@image@
. "$own/env.sh"
DOCKER_CONFIG=$(mktemp -d)
export DOCKER_CONFIG
trap 'rm -rf "$DOCKER_CONFIG"' EXIT
if [ -n "${@user_variable@-}" ]; then
    printf %s "${@password_variable@-}" |
        timeout -k 10 60 docker login --username "$@user_variable@" --password-stdin @registry@ >/dev/null
fi
unset @user_variable@ @password_variable@
status=0
timeout -k 10 @timeout_s@ docker pull --quiet "$image" </dev/null >"$own/image.log" 2>&1 || status=$?
if [ "$status" -ne 0 ]; then
    tail -n @lines@ "$own/image.log" >&2
    [ "$status" -ne 124 ] || echo "pulling $image did not end within @timeout_s@ s" >&2
    exit "$status"
fi
"""

_PULL_APPTAINER = r"""
set -eu
own=@own@ image=@image@ sif=@sif@
mkdir -p "${sif%/*}"
exec 9>"$sif.lock"
flock -w @timeout_s@ 9 || { echo "another node has been pulling this image for @timeout_s@ s" >&2; exit 1; }
[ ! -e "$sif" ] || exit 0
find "${sif%/*}" -maxdepth 1 -name "${sif##*/}.??????" -mmin +1440 -exec rm -rf {} + 2>/dev/null || : # who died there
work=$(mktemp -d "$sif.XXXXXX")
trap 'rm -rf "$work"' EXIT
. "$own/env.sh"
if [ -n "${@user_variable@-}" ]; then
    export APPTAINER_DOCKER_USERNAME="$@user_variable@" APPTAINER_DOCKER_PASSWORD="${@password_variable@-}"
fi
unset @user_variable@ @password_variable@
export APPTAINER_TMPDIR="$work" APPTAINER_CACHEDIR="$work/cache"
status=0
timeout -k 10 @timeout_s@ @apptainer@ pull "$work/image.sif" "docker://$image" \
    </dev/null >"$own/image.log" 2>&1 9>&- || status=$?
if [ "$status" -ne 0 ]; then
    tail -n @lines@ "$own/image.log" >&2
    [ "$status" -ne 124 ] || echo "pulling $image did not end within @timeout_s@ s" >&2
    exit "$status"
fi
mv -T "$work/image.sif" "$sif"
"""

# Only what the job, its network and we ourselves say goes in: PATH and the like are the image's own. Variables are
# given by name, so that no value is on a command line. What is started is ended with whoever asked for it:
# container_init.py.
_WRAPPER_BEGIN = r"""#!/bin/sh
# The interpreter of @image@, called as one of this machine.
set -eu
own=@own@
mkdir -p "$own/home" @folders@
ours='SPOTSUP_[A-Z_]+|PYTHONPATH|RES_OPTIONS@names@'
names=$(awk 'BEGIN { for (name in ENVIRON) print name }' | grep -xE "$ours" | grep -vxE '@secrets@' || :)
if [ -n "${@container_variable@-}" ]; then
    set -- -P @container_init@ python3 "$@"
else
    set -- -P @container_init@ --unattended python3 "$@"
fi
"""

_WRAPPER_DOCKER = r"""
is_there() {
    status=0
    timeout -k 1 @answer_s@ docker container inspect "$@container_variable@" </dev/null >/dev/null 2>&1 || status=$?
    case $status in 124 | 137) echo "Docker has not answered for @answer_s@ s" >&2 && exit 1 ;; esac
    return "$status"
}
set -- @image@ "$@"
for name in $names; do set -- --env "$name" "$@"; done
[ ! -e /dev/infiniband ] || set -- --device /dev/infiniband "$@"
if [ -n "${@container_variable@-}" ]; then
    looks=0
    while is_there; do
        [ "$looks" -lt 100 ] || { echo "Docker does not remove the container $@container_variable@" >&2; exit 1; }
        timeout -k 1 @answer_s@ docker rm -f "$@container_variable@" </dev/null >/dev/null 2>&1 || :
        sleep 0.1
        looks=$((looks + 1))
    done
    set -- --name "$@container_variable@" --interactive "$@"
fi
shm_kib=$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 2))
files=$(ulimit -Hn)
locked=$(ulimit -Hl) # RDMA pins memory: the agent's unit has no limit
case $locked in unlimited) locked=-1 ;; *) locked=$((locked * 1024)) ;; esac
exec docker run --rm --pull never --network host --shm-size "${shm_kib}k" --pids-limit -1 \
    --ulimit "memlock=$locked:$locked" --ulimit "nofile=$files:$files" --user "$(id -u):$(id -g)" \
    --env HOME="$own/home" --env USER="$(id -un)" --env LOGNAME="$(id -un)" --workdir "$PWD" \
    @options@ --entrypoint python3 "$@"
"""

_WRAPPER_APPTAINER = r"""
for name in $names; do eval "export APPTAINERENV_$name=\"\$$name\""; done
exec @apptainer@ exec --pid --cleanenv --home "$own/home" --pwd "$PWD" \
    @options@ @sif@ python3 "$@"
"""

_END_DOCKER = r"""#!/bin/sh
timeout -k 5 30 docker rm -f @name@ </dev/null >/dev/null 2>&1 || :
"""

_CHECK = r"""
set -eu
own=@own@ folder=@folder@
. "$own/env.sh"
cd /
status=0
timeout -k 10 @limit_s@ "$folder/python" -c @program@ </dev/null >&2 || status=$?
[ "$status" -ne 124 ] || echo "the image's interpreter did not answer within @limit_s@ s" >&2
[ "$status" -eq 0 ] || exit "$status"
: >"$folder/checked"
"""

_PROGRAM = """
import importlib.util, sys
if sys.version_info < (3, 11):
    sys.exit(f"the image's python3 is Python {sys.version.split()[0]}; 3.11 is needed")
"""

_PROGRAM_TORCH = """
if importlib.util.find_spec("torch") is None:
    sys.exit("the image's python3 cannot import torch; name an image that has it")
"""


@dataclass(frozen=True, slots=True)
class Inside:
    """What a container finds: `folders` of the machine under the same names, `read_only` ones too, and GPUs or none.

    `names`: of variables that go in beside spotsup's own. `container_init`: the path of container_init.py.
    """

    folders: tuple[str, ...]
    read_only: tuple[str, ...]
    names: tuple[str, ...]
    container_init: str
    gpus: bool


def install_docker(user: str) -> str:
    """The distribution's Docker, running, and open to `user`. As root."""
    return APT + _INSTALL_DOCKER + join_group(user)


def join_group(user: str) -> str:
    """Docker that is there is opened to `user`. As root."""
    return fill(_JOIN_GROUP, user=shlex.quote(user))


def install_toolkit() -> str:
    """NVIDIA's container toolkit, made known to Docker, which is restarted. As root."""
    return APT + _INSTALL_TOOLKIT


def pull_by_docker(image: Image, paths: Paths, timeout_s: float) -> str:
    """Docker has the image then. Ends with the pull's status, the last of what it said on stderr."""
    registry = "" if image.registry == HUB else shlex.quote(image.registry)
    return fill(_PULL_DOCKER, **_pull_values(image, paths, timeout_s), registry=registry)


def pull_by_apptainer(image: Image, paths: Paths, apptainer: str, sif: str, timeout_s: float) -> str:
    """The image as a file in the cache, complete or not at all; once, whoever asks."""
    values = {"apptainer": shlex.quote(apptainer), "sif": shlex.quote(sif)}
    return fill(_PULL_APPTAINER, **_pull_values(image, paths, timeout_s), **values)


def interpreter(
    image: Image, paths: Paths, inside: Inside, *, apptainer: str = "", sif: str = "", answer_s: float = ANSWER_S
) -> str:
    """The script that is an interpreter in the image: Docker's, or Apptainer's where its path is given."""
    if apptainer:
        options = _options(inside, "--bind", ["--nv"])
        tail = fill(_WRAPPER_APPTAINER, apptainer=shlex.quote(apptainer), sif=shlex.quote(sif), options=options)
    else:
        tail = fill(
            _WRAPPER_DOCKER,
            image=shlex.quote(str(image)),
            options=_options(inside, "--volume", ["--gpus", "all"]),
            answer_s=seconds(answer_s),
            **_VARIABLES,
        )
    head = fill(
        _WRAPPER_BEGIN,
        image=str(image),
        own=shlex.quote(paths.own),
        folders=shlex.join(inside.folders),
        names="".join(f"|{name}" for name in inside.names),
        secrets="|".join(SECRETS),
        container_init=shlex.quote(inside.container_init),
        **_VARIABLES,
    )
    return head + tail


def end_container(name: str) -> str:
    """A script that ends the container of this name, if there is one; it never fails."""
    return fill(_END_DOCKER, name=shlex.quote(name))


def check_image(paths: Paths, folder: str, limit_s: float, *, torch: bool = True) -> str:
    """Have the interpreter in `folder` say that it is new enough and has `torch`, in a container that can be killed.

    Then note that it did.
    """
    return fill(
        _CHECK,
        own=shlex.quote(paths.own),
        folder=shlex.quote(folder),
        limit_s=seconds(limit_s),
        program=shlex.quote(_PROGRAM + (_PROGRAM_TORCH.lstrip() if torch else "")),
    )


_VARIABLES = {"container_variable": CONTAINER_VARIABLE}


def _options(inside: Inside, bind: str, gpus: Sequence[str]) -> str:
    """What goes in, in a runtime's own words."""
    binds = [f"{folder}:{folder}" for folder in inside.folders]
    binds += [f"{folder}:{folder}:ro" for folder in inside.read_only]
    return shlex.join([*(word for each in binds for word in (bind, each)), *(gpus if inside.gpus else [])])


def _pull_values(image: Image, paths: Paths, timeout_s: float) -> dict[str, str]:
    return {
        "own": shlex.quote(paths.own),
        "image": shlex.quote(str(image)),
        "timeout_s": seconds(timeout_s),
        "lines": str(STDERR_LINES),
        "user_variable": REGISTRY_USER,
        "password_variable": REGISTRY_PASSWORD,
    }
