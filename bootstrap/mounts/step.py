"""The job's file systems: mounted as wanted, answering, and the checkpoint's folder proven to take a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256

from bootstrap.decision import Decision, ours, paths_on
from bootstrap.facts import Facts
from bootstrap.model import Again, Command, Paths, Run, Setup, Skip, Unfit, expand
from bootstrap.mounts.facts import PROBE_S, SCRATCH_LABEL, MountFact
from bootstrap.mounts.model import Mount, MountKind
from bootstrap.templates import fill

MOUNT_WAIT_S = 60
ALIVE_WAIT_S = 120
PROVE_WAIT_S = 60
UNMOUNT_WAIT_S = 20
INSTALL_TIMEOUT_S = 600.0
GRACE_S = 30.0

# By kind: the file system's type, and the options that its provider recommends. All are hard: when a server is slow, a
# soft mount returns an error, and a checkpoint gets a hole. The table in docs/reference/nodes.md is the same.
OPTIONS: dict[MountKind, tuple[str, str]] = {
    "nfs": ("nfs4", "vers=4.1,hard,timeo=600,retrans=2,noresvport,nconnect=4"),
    "efs": ("nfs4", "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"),
    "azure-files": ("nfs4", "vers=4,minorversion=1,sec=sys,nconnect=4,noresvport,actimeo=30,hard,timeo=600"),
    "filestore": ("nfs", "hard,timeo=600,retrans=3,rsize=524288,wsize=524288,async"),
    "lustre": ("lustre", "relatime,flock"),
    "scratch": ("ext4", "noatime"),
}

FSX_RELEASES = {"22.04": "jammy", "24.04": "noble"}


def mounts(facts: Facts, setup: Setup) -> Decision:
    """Mount what is missing. Something else at a mountpoint is a fault that we do not fix."""
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
            f"{missing[0]} is not mounted, and nothing is mounted on a machine that was not made for {setup.node}: "
            "mount it there by hand, or in its image"
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
    return (*commands, Again("the mounts may hold the interpreter or environments")) if missing else tuple(commands)


def mount_key(facts: Facts, setup: Setup) -> str:
    """Return what a proof depends on: the boot, the file systems, and the folder."""
    parts = (facts.boot_id, *sorted(map(str, setup.mounts)), checkpoint_folder(facts, setup))
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def checkpoint_folder(facts: Facts, setup: Setup) -> str:
    """Return the folder of checkpoints on this machine; "" where they go to an object store, or nowhere."""
    place = str(json.loads(setup.agent_config).get("checkpoints", ""))
    return "" if "://" in place else expand(place, facts.home)


def _log_folder(setup: Setup) -> str:
    """Return the folder that nodes' logs are copied to, "" for none."""
    return str(json.loads(setup.agent_config).get("log_mirror", ""))


def _fault(wanted: Mount, found: MountFact) -> str:
    """Return why what is mounted is not what is wanted; "" where it is."""
    place = f"{wanted.mountpoint} is {found.source} ({found.type}, {found.mode})"
    if wanted.kind == "scratch":
        return "" if found.mode == "rw" else f"{place}, but scratch has to be writable"
    kind = OPTIONS[wanted.kind][0].removesuffix("4")
    if found.type.removesuffix("4") != kind or _name(wanted.kind, found.source) != _name(wanted.kind, wanted.source):
        return f"{place} already, not {wanted.source}; choose another place, or an image that mounts nothing there"
    if found.mode != wanted.mode:
        return f"{place} already, not {wanted.mode} as the job asks for"
    return ""


def _name(kind: str, source: str) -> str:
    """Return the part of a source that identifies it: the kernel shows Lustre's servers by their addresses."""
    return source.rpartition(":")[2] if kind == "lustre" else source.rstrip("/")


def _clients(missing: list[Mount], facts: Facts, setup: Setup) -> list[Command] | Unfit:
    kinds = {mount.kind for mount in missing}
    commands: list[Command] = []
    debian = facts.system.os in ("debian", "ubuntu")
    if kinds - {"lustre", "scratch"} and not facts.mounts.nfs:
        if not debian:
            return Unfit(f"there is no NFS client, and none can be installed on {facts.system.os or 'this system'}")
        commands.append(Run("install the NFS client", fill("mounts/install_nfs.sh"), INSTALL_TIMEOUT_S, as_root=True))
    if "lustre" in kinds and not facts.mounts.lustre:
        release = FSX_RELEASES.get(facts.system.version) if facts.system.os == "ubuntu" else None
        if release is None or not setup.host.traits.fsx_client:
            return Unfit("there is no Lustre client, and only Amazon's for Ubuntu 22.04 and 24.04 can be installed")
        install = fill("mounts/install_fsx.sh", release=release)
        commands.append(Run("install the Lustre client", install, INSTALL_TIMEOUT_S, as_root=True))
    return commands


def _mount(wanted: Mount, facts: Facts) -> Run:
    if wanted.kind == "scratch":
        disk = next(iter(facts.mounts.scratch_disks + facts.mounts.disks), "")
        new = disk not in facts.mounts.scratch_disks
        script = mount_scratch(wanted, disk, facts.user, MOUNT_WAIT_S, new=new)
    else:
        script = mount(wanted, MOUNT_WAIT_S)
    return Run(f"mount {wanted}", script, 3 * MOUNT_WAIT_S + GRACE_S, as_root=True)


def _await(wanted: Mount) -> Run:
    script = wait_until_alive(wanted, ALIVE_WAIT_S)
    return Run(f"wait until {wanted} answers", script, ALIVE_WAIT_S + GRACE_S)


def _proof(facts: Facts, setup: Setup) -> list[Command]:
    """Return the commands of a proof. A folder that is on none of the mounts is not proven: it is the image's, or the
    user's."""
    paths, key = paths_on(facts, setup), mount_key(facts, setup)
    folder = checkpoint_folder(facts, setup)
    shared = bool(folder) and any(f"{folder}/".startswith(f"{mount.mountpoint}/") for mount in setup.mounts)
    commands: list[Command] = []
    for each in (folder if shared else "", _log_folder(setup)) if ours(facts, setup) else ():
        if each:
            # A node trains without the folder for logs, which only other users may be allowed to make.
            script = fill("mounts/make_folder.sh", folder=each, user=facts.user, needed=each == folder)
            commands.append(Run(f"make {each}", script, PROVE_WAIT_S + GRACE_S, as_root=True))
    if not shared:
        return [*commands, Run("note what is mounted", fill("mounts/note.sh", **_noted(paths, key)), GRACE_S)]
    prove = prove_folder(folder, paths, key, PROVE_WAIT_S)
    return [*commands, Run(f"prove that {folder} takes a file", prove, PROVE_WAIT_S + GRACE_S)]


def unmount(mounts: Sequence[Mount]) -> Run:
    """Unmount them in reverse order, lazily where there is no other way."""
    places = sorted((mount.mountpoint for mount in mounts), reverse=True)
    limit_s = 3.0 * (UNMOUNT_WAIT_S + 5) * len(places)
    return Run("unmount", fill("mounts/unmount.sh", places=places, limit_s=UNMOUNT_WAIT_S), limit_s, as_root=True)


def mount(wanted: Mount, limit_s: int) -> str:
    """Mount it, or fail within `limit_s`. As root; does nothing where something is mounted already."""
    kind, options = OPTIONS[wanted.kind]
    return fill(
        "mounts/mount.sh",
        place=wanted.mountpoint,
        source=wanted.source,
        type=kind,
        options=f"{options},{wanted.mode}",
        limit_s=limit_s,
    )


def mount_scratch(wanted: Mount, disk: str, user: str, limit_s: int, *, new: bool) -> str:
    """Mount a local disk, formatted first if `new`; a folder of the boot disk where `disk` is "". As root."""
    kind, options = OPTIONS[wanted.kind]
    return fill(
        "mounts/mount_scratch.sh",
        place=wanted.mountpoint,
        disk=disk,
        new=new,
        label=SCRATCH_LABEL,
        type=kind,
        options=options,
        user=user,
        limit_s=limit_s,
    )


def prove_folder(folder: str, paths: Paths, key: str, limit_s: int) -> str:
    """Write, force to disk, rename and read back a file in `folder`; then note `key`."""
    return fill("mounts/prove.sh", folder=folder, node=paths.node, limit_s=limit_s, **_noted(paths, key))


def wait_until_alive(wanted: Mount, limit_s: int, probe_s: int = PROBE_S) -> str:
    """Wait until what is mounted answers, or fail after `limit_s`."""
    source = wanted.source or "scratch"
    return fill("mounts/wait_until_alive.sh", place=wanted.mountpoint, source=source, probe_s=probe_s, limit_s=limit_s)


def _noted(paths: Paths, key: str) -> dict[str, str]:
    return {"own": paths.own, "proof": paths.proof, "key": key}
