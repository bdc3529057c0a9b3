"""The scripts that pull an image, and that stand for an interpreter in it.

Such an interpreter is a script that runs the image's python3 with its own arguments: a program that starts an
interpreter on the node needs to know nothing of containers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.container.image import HUB, REGISTRY_PASSWORD, REGISTRY_USER, Image
from bootstrap.errors import STDERR_LINES
from bootstrap.model import Paths
from bootstrap.templates import Value, fill

ANSWER_S = 20.0  # for Docker to say whether the container of an earlier launcher is still there

# Variables of spotsup that go into a container, as a pattern for grep. A job's `env` may add others, but not these:
SECRETS = (REGISTRY_USER, REGISTRY_PASSWORD)  # for the pull alone
_OWN_VARIABLES = ("SPOTSUP_[A-Z_]+", "PYTHONPATH", "RES_OPTIONS")


@dataclass(frozen=True, slots=True)
class Inside:
    """What a container gets from the machine."""

    folders: tuple[str, ...]
    """Under the same names as outside."""
    read_only: tuple[str, ...]
    """More folders, read-only."""
    names: tuple[str, ...]
    """Variables, beside spotsup's own."""
    container_init: str
    """The path of container_init.py."""
    gpus: bool


def pull_by_docker(image: Image, paths: Paths, timeout_s: float) -> str:
    """Pull the image by Docker. Ends with the pull's status, and the end of its output on stderr."""
    registry = () if image.registry == HUB else (image.registry,)
    return fill("container/pull_docker.sh", **_pull(image, paths, timeout_s), registry=registry)


def pull_by_apptainer(image: Image, paths: Paths, apptainer: str, sif: str, timeout_s: float) -> str:
    """Pull the image into the file `sif`, which appears complete or not at all; once for all who ask."""
    return fill("container/pull_apptainer.sh", **_pull(image, paths, timeout_s), apptainer=apptainer, sif=sif)


def interpreter(
    image: Image, paths: Paths, inside: Inside, *, apptainer: str = "", sif: str = "", answer_s: float = ANSWER_S
) -> str:
    """Return the script that is an interpreter in the image: by Apptainer where its path is given, else by Docker."""
    common: dict[str, Value] = {
        "own": paths.own,
        "folders": inside.folders,
        "names": "|".join((*_OWN_VARIABLES, *inside.names)),
        "container_init": inside.container_init,
    }
    if apptainer:
        options = _options(inside, "--bind", ["--nv"])
        return fill("container/interpreter_apptainer.sh", **common, apptainer=apptainer, sif=sif, options=options)
    options = _options(inside, "--volume", ["--gpus", "all"])
    return fill("container/interpreter_docker.sh", **common, image=str(image), options=options, answer_s=answer_s)


def check_image(paths: Paths, folder: str, limit_s: float, *, torch: bool = True) -> str:
    """Check that the interpreter in `folder` is new enough and has `torch`, in a container that can be killed."""
    return fill("container/check.sh", own=paths.own, folder=folder, limit_s=limit_s, torch=torch)


def _options(inside: Inside, bind: str, gpus: Sequence[str]) -> list[str]:
    """Folders and GPUs, as a runtime's options."""
    binds = [f"{folder}:{folder}" for folder in inside.folders]
    binds += [f"{folder}:{folder}:ro" for folder in inside.read_only]
    return [*(option for each in binds for option in (bind, each)), *(gpus if inside.gpus else [])]


def _pull(image: Image, paths: Paths, timeout_s: float) -> dict[str, Value]:
    return {
        "env": paths.env,
        "log": f"{paths.own}/image.log",
        "image": str(image),
        "timeout_s": timeout_s,
        "lines": STDERR_LINES,
    }
