"""A sandbox: a folder that stands for a machine, with its own /etc and /run, and its own systemctl, apt-get and mount.

Bootstrap's scripts run unchanged, except for the paths below. The programs keep their state in the folder. Nothing of
this computer is changed, root or not.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from bootstrap.connect import as_root
from bootstrap.facts import Facts, facts_script, parse_facts
from bootstrap.model import Again, Command, Reboot, Run, Setup, Skip, Upload
from bootstrap.steps import needs_new_facts, plan

TIMEOUT_S = 60.0
MAX_PASSES = 8

MOVED = re.compile(
    r"(?<![\w.$}~/-])/(?:etc|run|var|opt|sbin|usr/sbin|usr/share|usr/lib/systemd|lib/systemd|sys|proc/(?:mounts|locks))\b"
    r"|(?<=proc=)/proc\b"
)

_PROGRAMS = {
    "sudo": """
[ "$1" = -n ] && shift
exec "$@"
""",
    "runuser": """
shift 3
exec "$@"
""",
    "chown": ":",
    "systemctl": r"""
echo "systemctl $*" >>"$BOX/log"
units=$BOX/etc/systemd/system
[ "$1" != -q ] || shift
verb=$1
shift
case $verb in
is-system-running) echo running ;;
is-active)
    for unit; do
        pid=$(cat "$BOX/state/pid-$unit" 2>/dev/null) && case $(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) in
        '' | Z*) ;;
        *) exit 0 ;;
        esac
        [ ! -e "$BOX/state/active-$unit" ] || exit 0
    done
    exit 3
    ;;
mask) for unit; do ln -sfn /dev/null "$units/$unit"; done ;;
stop) for unit; do rm -f "$BOX/state/active-$unit"; done ;;
enable)
    [ "$1" != --now ] || shift
    for unit; do touch "$BOX/state/active-$unit"; done
    ;;
start)
    unit=$BOX/run/systemd/system/$1
    environment=$(sed -n 's/^Environment=//p' "$unit")
    command=$(sed -n 's/^ExecStart=//p' "$unit")
    eval "exec env -i HOME='$HOME' PATH='$PATH' $environment setsid $command" </dev/null >/dev/null 2>&1 &
    echo "$!" >"$BOX/state/pid-$1"
    sleep 0.1
    ;;
show)
    case "$*" in
    *MainPID*) for unit; do :; done; cat "$BOX/state/pid-$unit" ;;
    *) echo 1 ;;
    esac
    ;;
esac
""",
    "timedatectl": 'cat "$BOX/state/clock"',
    "dpkg-query": r"""
for package in $(cat "$BOX/state/kernels"); do
    want=install
    ! grep -qxF "$package" "$BOX/state/held" || want=hold
    echo "$want installed $package"
done
""",
    "apt-mark": r"""
echo "apt-mark $*" >>"$BOX/log"
[ "$1" = hold ] && shift && printf '%s\n' "$@" >>"$BOX/state/held"
""",
    "apt-get": r"""
echo "apt-get $*" >>"$BOX/log"
case "$*" in *nfs-common*) printf '#!/bin/sh\n' >"$BOX/bin/mount.nfs" && chmod 755 "$BOX/bin/mount.nfs" ;; esac
""",
    "mount": r"""
echo "mount $*" >>"$BOX/log"
[ ! -e "$BOX/state/mount-hangs" ] || exec sleep 600
[ ! -e "$BOX/state/mount-fails" ] || { echo "mount.nfs: access denied by server" >&2; exit 32; }
type=ext4 options=rw
while [ $# -gt 2 ]; do
    case $1 in
    -t) type=$2; shift ;;
    -o) options=$2; shift ;;
    esac
    shift
done
echo "$1 $2 $type $options 0 0" >>"$BOX/proc/mounts"
""",
    "umount": r"""
echo "umount $*" >>"$BOX/log"
for place; do :; done
if [ -e "$BOX/state/umount-hangs" ]; then case "$*" in *-l*) ;; *) exec sleep 600 ;; esac; fi
grep -v " $place " "$BOX/proc/mounts" >"$BOX/proc/mounts.new"
mv "$BOX/proc/mounts.new" "$BOX/proc/mounts"
""",
    # A disk is a line: name, model, file system, label.
    "lsblk": r"""
for disk; do :; done
case "$*" in
*'NAME /'*) echo "${disk##*/}" ;;
*NAME*) cut -d: -f1 "$BOX/state/disks" ;;
*MODEL*) grep "^$disk:" "$BOX/state/disks" | cut -d: -f2 ;;
*MOUNTPOINT*) grep "^$disk " "$BOX/proc/mounts" | cut -d' ' -f2 ;;
*FSTYPE*) grep "^$disk:" "$BOX/state/disks" | cut -d: -f3 ;;
*LABEL*) grep "^$disk:" "$BOX/state/disks" | cut -d: -f4 ;;
esac
""",
    "wipefs": r"""
for disk; do :; done
grep "^$disk:" "$BOX/state/disks" | cut -d: -f3 | grep . || :
""",
    "mkfs.ext4": r"""
echo "mkfs.ext4 $*" >>"$BOX/log"
for disk; do :; done
sed -i "s|^\($disk:[^:]*\):.*|\1:ext4:spotsup-scratch|" "$BOX/state/disks"
""",
}


@dataclass
class Sandbox:
    """A machine in the folder `box`, made for the node `born`. `environ`: more variables for scripts."""

    box: Path
    born: str = "n1"
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in ("home", "bin", "state", "etc/spotsup", "etc/systemd/system", "run/systemd/system", "proc"):
            (self.box / folder).mkdir(parents=True)
        self.write("etc/os-release", 'ID=debian\nVERSION_ID="12"\n')
        if self.born:
            self.write("etc/spotsup/born", f"{self.born}\n")
        for name in ("state/kernels", "state/held", "state/disks", "proc/mounts", "proc/locks", "log"):
            self.write(name, "")
        self.write("state/clock", "yes\n")
        for name, text in _PROGRAMS.items():
            self.program(name, text)

    @property
    def home(self) -> Path:
        """The user's home."""
        return self.box / "home"

    @property
    def log(self) -> list[str]:
        """The commands that would have changed a real machine, one per line."""
        return (self.box / "log").read_text().splitlines()

    def write(self, name: str, text: str) -> Path:
        """A file in the box."""
        path = self.box / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, name: str, text: str) -> None:
        """A program that scripts find first."""
        self.write(f"bin/{name}", f"#!/bin/sh\n{text}\n").chmod(0o755)

    def moved(self, script: str) -> str:
        """The script with the machine's own folders replaced by the box's."""
        box = str(self.box)
        return MOVED.sub(lambda found: found[0] if script.startswith(box, found.start()) else box + found[0], script)

    def sh(self, script: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        """Run it as on the machine."""
        environ = {
            "HOME": str(self.home),
            "BOX": str(self.box),
            "PATH": f"{self.box}/bin:{os.environ['PATH']}",
            **self.environ,
        }
        done = subprocess.run(
            ["/bin/sh", "-c", self.moved(script)],
            input=stdin,
            env=environ,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
            cwd=self.home,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def run(self, command: Run, node: str = "n1") -> subprocess.CompletedProcess[str]:
        """As `Shell.run` does."""
        script = command.script
        return self.sh(as_root(script, node, command.timeout_s) if command.as_root else script, command.stdin)

    def facts(self, setup: Setup) -> Facts:
        """The state of the machine."""
        done = self.sh(facts_script(setup))
        assert (done.returncode, done.stderr) == (0, "")
        return parse_facts(done.stdout)

    def bootstrap(self, setup: Setup, *only: str) -> list[Command]:
        """Run all steps, or some, until none needs new facts; returns their commands."""
        done: list[Command] = []
        for _ in range(MAX_PASSES):
            again = False
            for step in plan(self.facts(setup), setup):
                if only and step.name not in only:
                    continue
                assert isinstance(step.decision, Skip | tuple), step
                commands = step.decision if isinstance(step.decision, tuple) else ()
                for command in commands:
                    self.apply(command)
                done += commands
                again = needs_new_facts(commands)
                if again:
                    break
            if not again:
                return done
        raise AssertionError(f"still not done: {done[-1]}")

    def apply(self, command: Command) -> None:
        """Carry it out."""
        match command:
            case Upload(_, path, mode, data):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_bytes(data)
                Path(path).chmod(mode)
            case Run():
                done = self.run(command)
                assert done.returncode == 0, f"{command}: {done.stderr}"
            case Again():
                pass
            case Reboot():
                raise AssertionError("a sandbox cannot reboot")
