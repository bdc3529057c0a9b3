"""A container image as the environment: a runtime, the image, and an interpreter in it.

The runtime is Docker, or Apptainer where Docker does not work. On a machine of our own with neither, Docker is
installed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256

from bootstrap.container import scripts
from bootstrap.container.facts import sif_of
from bootstrap.container.scripts import SECRETS, Inside
from bootstrap.decision import Decision, env_script, ours, paths_on
from bootstrap.facts import Facts
from bootstrap.model import Again, Command, Run, Setup, Skip, Unfit, Upload, expand
from bootstrap.network.env import network_env
from bootstrap.templates import fill

INSTALL_TIMEOUT_S = 900.0
GROUP_TIMEOUT_S = 60.0
PULL_TIMEOUT_S = 1800.0  # tens of GB; the bootstrap's own limit may be shorter
CHECK_TIMEOUT_S = 180.0  # the first container of an image, from a cold disk
GRACE_S = 90.0


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A script that is an interpreter in a container. Its folder is named by its content."""

    folder: str
    script: str

    @property
    def path(self) -> str:
        """Return the script's path."""
        return f"{self.folder}/python"

    @property
    def name(self) -> str:
        """Return the folder's own name."""
        return self.folder.rpartition("/")[2]


def container(facts: Facts, setup: Setup) -> Decision:
    """Bring a runtime and the image, and check that the image's python3 has torch."""
    if setup.image is None:
        return Skip("the job names no container image")
    if odd := [folder for folder in _folders(facts, setup) if ":" in folder or "," in folder]:
        return Unfit(f"{odd[0]} cannot be mounted into a container, because it has a `:` or `,`; use another folder")
    prepared = _runtime(facts, setup)
    if prepared is not None:
        return prepared
    commands: list[Command] = []
    if not (facts.containers.sif if by_apptainer(facts) else facts.containers.image):
        commands += _pull(facts, setup)
    found = interpreter_of(facts, setup)
    if found.name not in facts.containers.checked:
        check = scripts.check_image(paths_on(facts, setup), found.folder, CHECK_TIMEOUT_S, torch=setup.torch)
        commands += [
            Upload("the environment", paths_on(facts, setup).env, 0o600, env_script(facts, setup)),
            Upload("the image's interpreter", found.path, 0o755, found.script.encode()),
            *_end(facts, setup),
            Run(f"check that the image has {'torch' if setup.torch else 'Python'}", check, CHECK_TIMEOUT_S + GRACE_S),
        ]
    if not commands:
        return Skip(f"{'Apptainer' if by_apptainer(facts) else 'Docker'} has {setup.image}, which has passed its check")
    return tuple(commands)


def by_apptainer(facts: Facts) -> bool:
    """True if Apptainer runs the image: where Docker does not."""
    return bool(facts.containers.apptainer) and facts.containers.docker != "works"


def interpreter_of(facts: Facts, setup: Setup) -> Interpreter:
    """Return the interpreter of `setup.image` on this machine."""
    assert setup.image is not None
    paths, gpus = paths_on(facts, setup), bool(setup.host.gpus and facts.gpu.devices)
    network = network_env(facts.network, setup.host)
    inside = Inside(
        folders=_folders(facts, setup),
        read_only=tuple(
            sorted({value.rpartition("/")[0] for name, value in network.items() if name == "NCCL_TOPO_FILE"})
        ),
        names=tuple(sorted({*network, *setup.env} - set(SECRETS))),
        container_init=f"{paths.trainer(setup.trainer)}/spotsup_trainer/launcher/container_init.py",
        gpus=gpus,
    )
    apptainer = facts.containers.apptainer if by_apptainer(facts) else ""
    sif = expand(sif_of(setup), facts.home)
    script = scripts.interpreter(setup.image, paths, inside, apptainer=apptainer, sif=sif)
    name = sha256(script.encode()).hexdigest()[:32]
    return Interpreter(f"{paths.containers}/{name}", script)


def container_name(setup: Setup) -> str:
    """Return the name of the launcher's container: a node has one at a time."""
    return f"spotsup-{setup.node}"


def _runtime(facts: Facts, setup: Setup) -> Decision | None:
    """Return the commands that bring a runtime, None where one works."""
    found, user = facts.containers, facts.user
    if by_apptainer(facts):
        return None
    if found.docker != "works":
        if not ours(facts, setup):
            fault = (
                f"Docker does not answer {user}" if found.docker == "silent" else "there is no Docker and no Apptainer"
            )
            return Unfit(
                f"the job names a container image, but {fault}, and nothing is installed on a machine that was not "
                f"made for {setup.node}: give {user} access to Docker there, or install Apptainer"
            )
        if facts.system.os not in ("debian", "ubuntu"):
            return Unfit(
                f"there is neither Docker nor Apptainer, and none can be installed on {facts.system.os or 'this'}; "
                "use Debian, Ubuntu, or a machine image that has it"
            )
        # The user is a member of the group from the next connection on.
        script = fill("container/install_docker.sh", user=user)
        install = Run("install Docker", script, INSTALL_TIMEOUT_S, as_root=True)
        return (install, Again("Docker may have the image"))
    if setup.host.gpus and facts.gpu.devices and not found.nvidia:
        if not ours(facts, setup):
            return Unfit("Docker cannot use GPUs without NVIDIA's container toolkit: install it on this machine")
        script = fill("container/install_toolkit.sh")
        toolkit = Run("install NVIDIA's container toolkit", script, INSTALL_TIMEOUT_S, as_root=True)
        return (toolkit, Again("Docker was restarted"))
    if not found.member and ours(facts, setup):
        return (
            Run(
                f"give {user} access to Docker",
                fill("container/join_group.sh", user=user),
                GROUP_TIMEOUT_S,
                as_root=True,
            ),
            Again("the user is in Docker's group"),
        )
    return None


def _pull(facts: Facts, setup: Setup) -> list[Command]:
    assert setup.image is not None
    paths = paths_on(facts, setup)
    if by_apptainer(facts):
        sif = expand(sif_of(setup), facts.home)
        script = scripts.pull_by_apptainer(setup.image, paths, facts.containers.apptainer, sif, PULL_TIMEOUT_S)
        limit_s = 2 * PULL_TIMEOUT_S + GRACE_S
    else:
        script, limit_s = scripts.pull_by_docker(setup.image, paths, PULL_TIMEOUT_S), PULL_TIMEOUT_S + GRACE_S
    return [
        Upload("the environment", paths.env, 0o600, env_script(facts, setup)),
        Run(f"pull {setup.image}", script, limit_s),
    ]


def _end(facts: Facts, setup: Setup) -> list[Command]:
    """Docker's containers belong to its daemon, and are ended by name. Apptainer's are processes like others."""
    if by_apptainer(facts):
        return []
    script = fill("container/end_docker.sh", name=container_name(setup)).encode()
    return [Upload("the script that ends the container", paths_on(facts, setup).end_container, 0o755, script)]


def _folders(facts: Facts, setup: Setup) -> tuple[str, ...]:
    """Return the folders that a container gets: bootstrap's own, the job's file systems, and the one of checkpoints."""
    root = expand(setup.root, facts.home)
    mounted = [mount.mountpoint for mount in setup.mounts]
    config, found = json.loads(setup.agent_config), [root, *mounted]
    for folder in (config.get("checkpoints", ""), *config.get("resume_from", ())):
        checkpoints = expand(str(folder), facts.home)
        if (
            checkpoints
            and "://" not in checkpoints
            and not any(f"{checkpoints}/".startswith(f"{each}/") for each in found)
        ):
            found.append(checkpoints)
    return tuple(found)
