"""What can run containers, and whether the job's image is there. Empty where the job wants no container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bootstrap.model import Paths, Setup, shell_path
from bootstrap.system.facts import BORN_FILE
from bootstrap.templates import fill

LIMIT_S = 20  # for a dockerd that hangs, or an image store on a slow disk


@dataclass(frozen=True, slots=True)
class Containers:
    """What the machine has for containers. Asked as root where the machine is ours."""

    docker: str = "absent"
    """absent, silent (the program is there, but its daemon does not answer us), or works."""
    member: bool = False
    """Whether the user may use Docker without being root."""
    nvidia: bool = False
    """Whether NVIDIA's container toolkit is installed."""
    apptainer: str = ""
    """Its path, "" for none."""
    image: bool = False
    """Whether Docker has the job's image."""
    sif: bool = False
    """Whether the cache has the job's image for Apptainer."""
    checked: frozenset[str] = frozenset()
    """Names of the interpreters whose image has passed its check."""


def containers_script(setup: Setup) -> str:
    """Return a script that prints one JSON object; an empty one where the job wants no container."""
    if setup.image is None:
        return "echo '{}'\n"
    return fill(
        "container/facts.sh",
        born=BORN_FILE,
        node=setup.machine_name,
        limit_s=LIMIT_S,
        image=str(setup.image),
        sif=shell_path(sif_of(setup)),
        containers=shell_path(Paths(setup.root, setup.node).containers),
    )


def sif_of(setup: Setup) -> str:
    """Return where the image lies for Apptainer: in the cache, which nodes may share."""
    assert setup.image is not None
    return f"{setup.cache_folder}/{setup.image.name}.sif"


def containers_facts(value: Any) -> dict[str, Any]:
    """Return the field of Facts that this section fills. Raises TypeError."""
    return {"containers": Containers(**{**value, "checked": frozenset(map(str, value.get("checked", ())))})}
