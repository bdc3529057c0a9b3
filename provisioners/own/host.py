"""What runs on a host of one's own: claims it for a node, lists its claims, gives it back.

The daemon sends this module, with those that it imports, over each SSH connection; the host needs Python 3.9 and sshd.
A claim is a machine as the local cloud makes them: an init below which all processes of the node live, and an sshd of
its own with the node's host key, as the user who logged in. Nothing here changes the system, or needs root.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from provisioners.localcloud.machine.child import is_free
from provisioners.localcloud.machine.spec import MARKER_VARIABLE, Folder, Spec, read_json, write_json
from provisioners.localcloud.processes import Identity, Target, find, is_alive, is_machine_id, kill
from provisioners.localcloud.processes import look as look_up
from provisioners.localcloud.programs import ProgramMissingError, find_ssh_programs, tools_root
from provisioners.own.init import ENVIRONMENT

ENDED_KEPT_S = 86400.0
MAX_ENDED = 1000
# A claim takes all of these at most, and the daemon waits for 30 s.
BOOT_S = 8.0
KILL_S = 5.0
SMI_S = 6.0
# A name may hold anything: it is the last.
SMI_QUERY = ("index", "uuid", "memory.total", "name")
APPS_QUERY = ("gpu_uuid", "pid", "process_name")
MAX_WORDS = 300
ANSWER_FOLLOWS = "spotsup-answer:"

_CLAIM = "claim.json"
_CLOSED = "closed.json"
_LOG_CHARACTERS = 65536
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where torch puts what its processes share


def answer(request: Mapping[str, Any], root: Path, zip_path: str, now: float, reached_at: str) -> dict[str, Any]:
    """Return the answer to one request, as JSON. `root`: the folder of all that is ours. `reached_at`: the address by
    which the request came. Raises OSError."""
    verbs = {"look": look, "claim": claim, "release": release, "console": console, "close": close}
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(root):
        found = verbs[request["do"]](Host(root, zip_path, now, reached_at), request)
    # Not while others wait: a driver may take its time.
    return {**found, "facts": facts()} if request.get("facts") else found


class Host:
    """The folder of all that is ours on this computer; when, and by which address, the request came."""

    def __init__(self, root: Path, zip_path: str, now: float, reached_at: str) -> None:
        self.root = root
        self.zip_path = zip_path
        self.now = now
        self.reached_at = reached_at
        self.machines = root / "machines"
        self.ended = root / "ended"
        self.cache = root / "cache"
        for each in (self.machines, self.ended, self.cache):
            each.mkdir(mode=0o700, exist_ok=True)

    def claims(self) -> list[dict[str, Any]]:
        """Return all that are there, and those that have ended since yesterday."""
        here = filter(None, (_read(each / _CLAIM) for each in sorted(self.machines.iterdir())))
        gone = filter(None, (_read(each) for each in sorted(self.ended.iterdir())))
        return [*(each for each in here if each["boot"] == boot_id()), *gone]

    def write(self, made: Mapping[str, Any]) -> None:
        """Note a claim, also for a host that loses its power now."""
        write_json(self.machines / made["id"] / _CLAIM, made, durable=True)

    def note_end(self, made: Mapping[str, Any], why: str) -> None:
        """End a claim: nothing of it is left but a note."""
        ended = {**made, "state": "terminated", "ended_at": self.now, "why": why}
        write_json(self.ended / f"{made['id']}.json", ended, durable=True)
        self.remove(made["id"], made)

    def remove(self, machine: str, made: Mapping[str, Any]) -> None:
        """Remove the files of a machine. Where some belong to another user, its claim goes first, and they are left."""
        folder = self.machines / machine
        if made.get("tmp"):
            _remove_tree(Path(made["tmp"]))
        _remove_tree(folder)
        if folder.exists():
            (folder / _CLAIM).unlink(missing_ok=True)
            folder.rename(self.root / f"left-{machine}-{int(self.now)}")

    def closed(self) -> dict[str, Any] | None:
        """Return since and until when somebody has this computer for themselves; None for never."""
        return _read(self.root / _CLOSED)


def _remove_tree(folder: Path) -> None:
    """Remove a folder as far as we may, with what is read-only in it, as package managers make it."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for at, folders, _ in os.walk(folder):
            for each in folders:
                with suppress(OSError):
                    Path(at, each).chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> dict[str, Any] | None:
    """Return a note; None where there is none, or a power failure has left half of one."""
    try:
        return read_json(path)
    except (ValueError, TypeError):
        return None


def of_this_computer(root: Path) -> Path:
    """Return the folder of this computer below `root`, which several may have in common: a home over NFS. Its name may
    change."""
    machine_id = Path("/etc/machine-id")
    known = machine_id.read_text(encoding="utf-8").strip() if machine_id.exists() else ""
    return root / hashlib.sha256((known or os.uname().nodename).encode()).hexdigest()[:8]


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Let one request in at a time: two daemons may ask for the same GPUs."""
    with (root / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# -- looking -----------------------------------------------------------------------------------------------


def look(host: Host, _request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claims, and since and until when somebody has this computer for themselves."""
    _note_ends(host)
    return {"claims": host.claims(), "closed": host.closed()}


def _note_ends(host: Host) -> None:
    """Note that a claim has ended whose init is gone: the host was restarted, or somebody has killed it."""
    for folder in sorted(host.machines.iterdir()):
        made = _read(folder / _CLAIM)
        if made is None:
            _end_unknown(host, folder.name)
        elif (host.ended / f"{made['id']}.json").exists():
            host.remove(made["id"], made)  # we were killed while we noted it
        elif made["boot"] != boot_id():
            if made["computer"] == os.uname().nodename:  # else that of a copy, which has our machine-id
                host.note_end(made, "the host was restarted")
        elif made["state"] == "pending":
            _finish(host, made)
        elif not is_alive(_init_of(made)):
            _end(host, made, "its first process was killed")
    old = sorted(host.ended.iterdir(), key=lambda each: each.stat().st_mtime)
    for each in [*old[: -MAX_ENDED or None], *(e for e in old if host.now - e.stat().st_mtime > ENDED_KEPT_S)]:
        each.unlink(missing_ok=True)


def facts() -> dict[str, Any]:
    """Return what this host is."""
    missing = ""
    try:
        find_ssh_programs(tools_root())
    except ProgramMissingError as error:
        missing = str(error)
    status, gpus = nvidia_smi(SMI_QUERY, "gpu")
    user = user_name()
    return {"user": user, "lingers": lingers(user), "missing": missing[:MAX_WORDS], "gpus": gpus, "smi": status}


def user_name() -> str:
    """Return who has logged in."""
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def lingers(user: str) -> bool:
    """True unless logind removes this user's shared memory with the last session: logind.conf(5), RemoveIPC."""
    logind = Path("/run/systemd/users").is_dir()
    system_user = os.getuid() < 1000  # SYS_UID_MAX: RemoveIPC leaves these alone
    return not logind or system_user or Path(f"/var/lib/systemd/linger/{user}").exists()


def nvidia_smi(query: tuple[str, ...], what: str) -> tuple[str, list[list[str]]]:
    """Return ("" or why not, its rows). No nvidia-smi: no GPUs."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "", []
    command = [program, f"--query-{what}={','.join(query)}", "--format=csv,noheader,nounits"]
    try:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        output, errors = running.communicate(timeout=SMI_S)
    except OSError as error:
        return f"nvidia-smi: {error}"[:MAX_WORDS], []
    except subprocess.TimeoutExpired:
        running.kill()  # and no wait for it: with a GPU that is gone it cannot end
        return f"nvidia-smi does not answer within {SMI_S:g} s: look at that host's driver", []
    if running.returncode:
        return f"nvidia-smi ended with {running.returncode}: {(output + errors).strip()}"[:MAX_WORDS], []
    lines = filter(None, map(str.strip, output.splitlines()))
    rows = [[part.strip() for part in line.split(",", len(query) - 1)] for line in lines]
    if bad := [row for row in rows if len(row) != len(query)]:
        return f"nvidia-smi says {', '.join(bad[0])!r}"[:MAX_WORDS], []
    return "", rows


def boot_id() -> str:
    """Return what changes with each start of this host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


# -- claiming ----------------------------------------------------------------------------------------------


def claim(host: Host, request: Mapping[str, Any]) -> dict[str, Any]:
    """Claim GPUs of this host for a node: {"claim": …}, or {"busy": who has them} or {"fatal": what is wrong}.

    The same owner and token is the same claim, also after its end.
    """
    _note_ends(host)
    for made in host.claims():
        if all(made[key] == request[key] for key in ("cluster", "key_mark", "token")):
            same = all(made[key] == request[key] for key in ("node", "host", "host_key_public"))
            return {"claim": made} if same else {"fatal": "this token was used for another request"}
    closed = host.closed()
    if closed is not None and closed["until"] > host.now:
        return {"busy": "somebody has it for themselves"}
    port = _free(request["ports"], host)
    if busy := _busy(host, request["gpus"]) or ("" if port is not None else "all of own.ports are in use"):
        return {"busy": busy}
    try:
        programs = find_ssh_programs(tools_root())
    except ProgramMissingError as error:
        return {"fatal": str(error)}
    made = {
        **{key: request[key] for key in ("id", "cluster", "key_mark", "token", "node", "host", "host_key_public")},
        "gpus": request["gpus"],
        "tmp": "",
        "boot": boot_id(),
        "computer": os.uname().nodename,
        "launched_at": host.now,
        "state": "pending",
        "pid": 0,
        "started": 0,
        "ssh_port": 0,
        "ended_at": 0.0,
        "why": "",
    }
    folder = Folder(host.machines / made["id"])
    folder.home.mkdir(mode=0o700, parents=True)
    # Not in our folder, which may be on NFS, and too deep for a socket: 107 characters, unix(7).
    made["tmp"] = tempfile.mkdtemp(prefix="spotsup-")
    host.write(made)
    (folder.home / ".cache").symlink_to(host.cache)
    _write_private(folder.host_key, request["host_key_private"])
    _write_private(folder.authorized_keys, "".join(f"{line}\n" for line in request["authorized_keys"]))
    environ = {"TMPDIR": made["tmp"]}
    if request["gpus"] is not None:
        # CUDA counts the fastest first; nvidia-smi, whose numbers these are, as the bus does.
        environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, request["gpus"]))
    write_json(folder.path / ENVIRONMENT, environ)
    folder.write_spec(
        Spec(
            id=made["id"],
            zone=request["zone"],
            instance_type=request["host"],
            address=_listen(host.reached_at),
            ssh_port=port or 0,
            **programs.in_spec,
        )
    )
    _boot(host, folder, made["id"])
    return _finish(host, made)


def _finish(host: Host, made: dict[str, Any]) -> dict[str, Any]:
    """Return {"claim": …} of a machine that has begun, or {"busy": why it did not}: then nothing of it is left."""
    folder = Folder(host.machines / made["id"])
    report = folder.read_report()
    if report is not None and not report.error and is_alive(Identity(report.pid, report.started)):
        made.update(state="running", pid=report.pid, started=report.started, ssh_port=report.ssh_port)
        host.write(made)
        return {"claim": made}
    why = (report.error if report and report.error else "it ended at once, or did not begin in time")[:MAX_WORDS]
    log = folder.log.read_text(errors="replace") if folder.log.exists() else ""
    _end(host, made, why)
    return {"busy": f"no machine begins there: {why[: MAX_WORDS // 2]}: {log[-MAX_WORDS // 2 :]}".strip(" :")}


def _listen(reached_at: str) -> str:
    """Return where a machine's sshd listens: on every address of the kind by which we were reached. Keys alone let
    in."""
    if reached_at.startswith("127."):
        return reached_at  # this computer itself
    return "::" if ":" in reached_at and not reached_at.startswith("::ffff:") else "0.0.0.0"  # noqa: S104


def _busy(host: Host, gpus: list[int] | None) -> str:
    """Return who has one of these GPUs, "" where they are free. None: all of this host."""
    for made in host.claims():
        if made["state"] != "terminated":
            theirs = made["gpus"]
            if gpus is None or theirs is None or set(gpus) & set(theirs):
                whose = f"{made['node']} of the cluster {made['cluster']}"
                return f"{'this host' if theirs is None else 'its GPUs ' + str(theirs)} works for {whose}"
    problem, rows = nvidia_smi(APPS_QUERY, "compute-apps")
    if not rows:
        return problem
    problem, listed = nvidia_smi(SMI_QUERY, "gpu")
    numbers = {row[1]: int(row[0]) for row in listed if row[0].isdecimal()}
    for uuid, pid, name in rows:
        if gpus is None or numbers.get(uuid) in {None, *gpus}:
            return f"GPU {numbers.get(uuid, uuid)} is used by another program: {name}, pid {pid}"[:MAX_WORDS]
    return problem


def _free(ports: Sequence[int] | None, host: Host) -> int | None:
    """Return a port of the range without a listener; None for none; 0, for any, without a range."""
    if ports is None:
        return 0
    address = _listen(host.reached_at)
    return next((port for port in range(ports[0], ports[1] + 1) if is_free(address, port)), None)


def _boot(host: Host, folder: Folder, machine: str) -> None:
    """Start a machine's init, which outlives us, and wait until it has reported or ended."""
    # Its parent says its pid and ends: it is nobody's child here, and outlives this request.
    begin = (
        "import os, sys\npid = os.fork()\nif pid: print(pid, flush=True); os._exit(0)\nos.dup2(2, 1)\n"
        "sys.path.insert(0, sys.argv[1])\ndel sys.argv[1]\n"
        "from provisioners.own.init import main\nmain()"
    )
    environ, until = {**os.environ, MARKER_VARIABLE: machine}, time.monotonic() + BOOT_S
    with folder.log.open("ab") as log:
        started = subprocess.run(
            [sys.executable, "-I", "-S", "-c", begin, host.zip_path, str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=environ,
            timeout=BOOT_S,
            check=True,
        )
    init = look_up(int(started.stdout))
    while init and is_alive(init.identity) and folder.read_report() is None and time.monotonic() < until:
        time.sleep(0.01)


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


# -- giving back -------------------------------------------------------------------------------------------


def release(host: Host, request: Mapping[str, Any]) -> dict[str, Any]:
    """End a claim, and all that it has begun; {"left": pids that SIGKILL did not end}."""
    made = _read(host.machines / request["id"] / _CLAIM)
    return {"left": _end(host, made, "given back") if made else _end_unknown(host, request["id"])}


def _end_unknown(host: Host, machine: str) -> list[int]:
    """End what carries the mark of a machine that nothing is noted of: we were killed before, or the power failed."""
    if not is_machine_id(machine):
        return []
    left = kill([Target(machine, None)], KILL_S)
    if not left:
        host.remove(machine, {})
    return sorted(each.pid for each in left)


def _end(host: Host, made: Mapping[str, Any], why: str) -> list[int]:
    init = _init_of(made)
    pids = {str(each.pid) for each in find([init] if is_alive(init) else [], made["id"].__eq__)}
    left = kill([Target(made["id"], init if is_alive(init) else None)], KILL_S)
    if left:
        return sorted(each.pid for each in left)
    for each in _SHARED_MEMORY.glob("torch_*"):
        # torch_PID_…: torch/lib/libshm, of a process that was killed before it could remove it
        if each.name.split("_")[1] in pids and each.stat().st_uid == os.getuid():
            each.unlink(missing_ok=True)
    host.note_end(made, why)
    return []


def _init_of(made: Mapping[str, Any]) -> Identity:
    return Identity(made["pid"], made["started"])


def console(host: Host, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the end of a machine's log."""
    log = Folder(host.machines / request["id"]).log
    return {"text": log.read_text(errors="replace")[-_LOG_CHARACTERS:] if log.exists() else ""}


def close(host: Host, request: Mapping[str, Any]) -> dict[str, Any]:
    """Let nobody claim this computer until then, whom one of its users wants it for; `until` 0 opens it again."""
    write_json(host.root / _CLOSED, {"since": request["since"], "until": request["until"]}, durable=True)
    return look(host, request)


def by_hand(program: str, arguments: Sequence[str]) -> None:
    """Print what this computer is claimed for and, with `end`, end it: for who sits at it, and has no daemon any more.

    `program`: the zip, in the folder of all that is ours.
    """
    root = of_this_computer(Path(program).resolve().parent)
    if not root.is_dir():
        print("nothing of spotsup is here")
        return
    with _alone(root):
        host = Host(root, program, time.time(), "")
        _note_ends(host)
        for made in [each for each in host.claims() if each["state"] != "terminated"]:
            what = f"{made['id']}: {made['node']} of the cluster {made['cluster']}"
            left = _end(host, made, "ended by hand") if "end" in arguments else None
            if left is None:
                print(f"{what} runs here; `python3 {program} end` ends it")
            else:
                print(f"{what} has ended" if not left else f"{what}: SIGKILL did not end the processes {left}")


def main(request: Mapping[str, Any], root: str, zip_path: str) -> None:
    """Print the answer, after a line that says so: what the login prints comes before."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a request ends with its connection
    folder = of_this_computer(Path(root))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    reached_at = os.environ.get("SSH_CONNECTION", "0 0 0.0.0.0 0").split(" ")[2]  # ssh(1): our address is the third
    print(f"\n{ANSWER_FOLLOWS}\n{json.dumps(answer(request, folder, zip_path, time.time(), reached_at))}")
