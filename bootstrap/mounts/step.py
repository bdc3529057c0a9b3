"""The job's file systems: mounted as wanted, answering, and the checkpoint's folder proven to take a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256

from bootstrap.decision import Decision, ours, paths_on
from bootstrap.facts import Facts
from bootstrap.model import Again, Command, Run, Setup, Skip, Unfit, expand
from bootstrap.mounts import scripts as mount_scripts
from bootstrap.mounts.facts import MountFact
from bootstrap.mounts.model import Mount

MOUNT_WAIT_S = 60
ALIVE_WAIT_S = 120
PROVE_WAIT_S = 60
UNMOUNT_WAIT_S = 20
INSTALL_TIMEOUT_S = 600.0
GRACE_S = 30.0


def mounts(facts: Facts, setup: Setup) -> Decision:
    """What is not mounted is mounted; what is mounted otherwise is a fault that we do not mend."""
    if not setup.mounts:
        return Skip("no storage is asked for")
    missing, silent = [], []
    for wanted in sorted(setup.mounts, key=lambda mount: mount.mountpoint):  # a folder before what is below it
        found = facts.mounts.at(wanted.mountpoint)
        if found is None:
            missing.append(wanted)
        elif fault := _fault(wanted, found):
            return Unfit(fault)
        elif not found.alive:
            silent.append(wanted)
    if missing and not ours(facts, setup):
        return Unfit(
            f"{missing[0]} is not mounted, and this machine is not one that was made for {setup.node}: nothing is "
            "mounted on it; mount it there by hand, or in its image"
        )
    clients = _clients(missing, facts, setup)
    if isinstance(clients, Unfit):
        return clients
    commands: list[Command] = [*clients, *(_mount(wanted, facts) for wanted in missing), *map(_await, silent)]
    if facts.mounts.proof != mount_key(facts, setup):
        commands += _proof(facts, setup)
    if not commands:
        return Skip(f"mounted and alive: {', '.join(map(str, setup.mounts))}")
    # The interpreter, or environments, may be on what was mounted just now.
    return (*commands, Again("what is mounted may hold what is looked for")) if missing else tuple(commands)


def mount_key(facts: Facts, setup: Setup) -> str:
    """What must be the same for a proof to hold: the boot, the file systems, and the folder."""
    parts = (facts.boot_id, *sorted(map(str, setup.mounts)), checkpoint_folder(facts, setup))
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def checkpoint_folder(facts: Facts, setup: Setup) -> str:
    """Where checkpoints go on this machine."""
    return expand(str(json.loads(setup.agent_config).get("checkpoint_dir", "")), facts.home)


def _log_folder(setup: Setup) -> str:
    """Where nodes' logs are copied to, "" for nowhere."""
    return str(json.loads(setup.agent_config).get("log_mirror", ""))


def _fault(wanted: Mount, found: MountFact) -> str:
    """Why what is mounted is not what is wanted, or ""."""
    place = f"{wanted.mountpoint} is {found.source} ({found.type}, {found.mode})"
    if wanted.kind == "scratch":
        return "" if found.mode == "rw" else f"{place}, where scratch is to be written to"
    kind = mount_scripts.OPTIONS[wanted.kind][0].removesuffix("4")
    if found.type.removesuffix("4") != kind or _name(wanted.kind, found.source) != _name(wanted.kind, wanted.source):
        return f"{place} already, not {wanted.source}; choose another place, or an image that mounts nothing there"
    if found.mode != wanted.mode:
        return f"{place} already, not {wanted.mode} as the job asks for"
    return ""


def _name(kind: str, source: str) -> str:
    """What says that two sources are one: the kernel shows Lustre's servers by their numbers."""
    return source.rpartition(":")[2] if kind == "lustre" else source.rstrip("/")


def _clients(missing: list[Mount], facts: Facts, setup: Setup) -> list[Command] | Unfit:
    kinds = {mount.kind for mount in missing}
    commands: list[Command] = []
    debian = facts.system.os in ("debian", "ubuntu")
    if kinds - {"lustre", "scratch"} and not facts.mounts.nfs:
        if not debian:
            return Unfit(f"there is no NFS client, and none can be installed on {facts.system.os or 'this system'}")
        install = mount_scripts.install_nfs_client()
        commands.append(Run("install the NFS client", install, INSTALL_TIMEOUT_S, as_root=True))
    if "lustre" in kinds and not facts.mounts.lustre:
        release = mount_scripts.FSX_RELEASES.get(facts.system.version) if facts.system.os == "ubuntu" else None
        if release is None or not setup.host.traits.fsx_client:
            return Unfit("there is no Lustre client, and only Amazon's for Ubuntu 22.04 and 24.04 can be installed")
        install = mount_scripts.install_fsx_client(release)
        commands.append(Run("install the Lustre client", install, INSTALL_TIMEOUT_S, as_root=True))
    return commands


def _mount(wanted: Mount, facts: Facts) -> Run:
    if wanted.kind == "scratch":
        disk = next(iter(facts.mounts.scratch_disks + facts.mounts.disks), "")
        new = disk not in facts.mounts.scratch_disks
        script = mount_scripts.scratch(wanted, disk, facts.user, MOUNT_WAIT_S, new=new)
    else:
        script = mount_scripts.mount(wanted, MOUNT_WAIT_S)
    return Run(f"mount {wanted}", script, 3 * MOUNT_WAIT_S + GRACE_S, as_root=True)


def _await(wanted: Mount) -> Run:
    script = mount_scripts.wait_until_alive(wanted, ALIVE_WAIT_S)
    return Run(f"wait until {wanted} answers", script, ALIVE_WAIT_S + GRACE_S)


def _proof(facts: Facts, setup: Setup) -> list[Command]:
    """Nothing is proven of a folder that is on none of the mounts: it is the image's, or the user's."""
    paths, key = paths_on(facts, setup), mount_key(facts, setup)
    folder = checkpoint_folder(facts, setup)
    shared = any(f"{folder}/".startswith(f"{mount.mountpoint}/") for mount in setup.mounts)
    commands: list[Command] = []
    for each in (folder if shared else "", _log_folder(setup)) if ours(facts, setup) else ():
        if each:
            # Without its logs a node trains: their folder may be one that only others may make.
            own = mount_scripts.own_folder(each, facts.user, needed=each == folder)
            commands.append(Run(f"make {each}", own, PROVE_WAIT_S + GRACE_S, as_root=True))
    if not shared:
        return [*commands, Run("note what is mounted", mount_scripts.note(paths, key), GRACE_S)]
    prove = mount_scripts.prove_folder(folder, paths, key, PROVE_WAIT_S)
    return [*commands, Run(f"prove that {folder} takes a file", prove, PROVE_WAIT_S + GRACE_S)]


def unmount(mounts: Sequence[Mount]) -> Run:
    """What ends them, in reverse."""
    places = tuple(sorted((mount.mountpoint for mount in mounts), reverse=True))
    limit_s = 3.0 * (UNMOUNT_WAIT_S + 5) * len(places)
    return Run("unmount", mount_scripts.unmount(places, UNMOUNT_WAIT_S), limit_s, as_root=True)
