"""A host in a mount namespace of its own, where /etc, /var/lib and programs change without changing this computer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.programs import find_program, program_env
from tools.stack import ROOT

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace, and users")

_SETUP = r"""
set -e
box=$1 python=$2 etcd=$3 home=$4 version=$5 packages=$6
mount -t tmpfs tmpfs "$box"
mkdir -p "$box/etc" "$box/work" "$box/bin" "$box/bin-work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$box/etc,workdir=$box/work" /etc
mount -t overlay overlay -o "lowerdir=/usr/bin,upperdir=$box/bin,workdir=$box/bin-work" /usr/bin
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /opt
mount -t tmpfs tmpfs /run
[ -e /usr/bin/etcd ] || cp "$etcd" /usr/bin/etcd
# An interpreter as the system's: the unit could not start one in a home folder.
mkdir -p /opt/python/bin /opt/spotsup/bin "/opt/spotsup/lib/$version/site-packages"
cp "$python" /opt/python/bin/python3
ln -s /opt/python/bin/python3 /opt/spotsup/bin/python
echo "home = $home" >/opt/spotsup/pyvenv.cfg
echo "$packages" | tr : '\n' >"/opt/spotsup/lib/$version/site-packages/spotsup.pth"
for each in daemon:spotsupd ctl:spotsupctl; do
    cat >"/opt/spotsup/bin/${each#*:}" <<END
#!/opt/spotsup/bin/python
import sys
from supervisor.cli.${each%:*} import main
sys.argv[0] = "${each#*:}"
main()
END
    chmod 755 "/opt/spotsup/bin/${each#*:}"
done
"""
_BEGIN = """
set -e
box=$1
PATH=/opt/spotsup/bin:$PATH
"""

# In systemd's place: etcd runs as its unit says, without the confinement.
SYSTEMD = r"""
ip link set lo up
ip address add 10.9.0.5/32 dev lo
mkdir -p /run/systemd/system
cat >/usr/bin/systemctl <<'END'
#!/bin/bash
folder=/etc/systemd/system unit=spotsup-etcd.service
start() {
    set -a
    . <(sed -n 's/^Environment=//p' $folder/$unit)
    . /etc/spotsup/etcd.env
    set +a
    program=$(sed -n 's/^ExecStart=//p' $folder/$unit)
    mkdir -p $ETCD_DATA_DIR && chown spotsup:spotsup $ETCD_DATA_DIR && chmod 700 $ETCD_DATA_DIR
    setpriv --reuid spotsup --regid spotsup --clear-groups $program >>/run/etcd.log 2>&1 &
    echo $! >/run/etcd.pid
    for _ in $(seq 300); do (echo >/dev/tcp/127.0.0.1/2379) 2>/dev/null && return; sleep 0.1; done
    tail -5 /run/etcd.log
    exit 1
}
runs() { [ -e /run/etcd.pid ] && kill -0 "$(cat /run/etcd.pid)" 2>/dev/null; }
stop() { ! runs || { kill "$(cat /run/etcd.pid)"; while runs; do sleep 0.05; done; }; }
case "$1 $*" in
    is-active*) runs ;;
    stop*) stop ;;
    restart*) stop; start ;;
    enable*--now*etcd*|start*) runs || start ;;
esac
END
chmod 755 /usr/bin/systemctl
trap 'systemctl stop' EXIT
"""


class HostBox:
    """Use `host_box`. `folder`: seen inside and outside; `$box` in scripts is the host's own."""

    def __init__(self, folder: Path, *isolated: str) -> None:
        self.folder = folder
        self._own = folder / "own"
        self._own.mkdir(parents=True)
        self._enter = ("--mount", *isolated)
        self._started: list[subprocess.Popen[str]] = []
        self._holder = subprocess.Popen(
            [
                *("unshare", "--mount", *isolated, "--propagation", "private"),
                *("bash", "-c", _SETUP + "\necho ready; exec sleep infinity", "box", self._own),
                *(Path(sys.executable).resolve(), find_program("etcd"), Path(sys.base_prefix) / "bin"),
                *(f"python{sys.version_info.major}.{sys.version_info.minor}", _packages()),
            ],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=program_env(),
        )

    def ready(self) -> None:
        """Wait until it is there."""
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"

    def run(self, script: str) -> str:
        """Run a script to its end; what it prints, errors with it."""
        done = self.attempt(script)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def attempt(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script to its end, whatever that is."""
        return subprocess.run(
            self._command(script),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=120,
            env=_ENVIRON,
        )

    def start(self, script: str) -> subprocess.Popen[str]:
        """Start a script, which ends with the box. What it `exec`s has the pid of what is returned."""
        with (self.folder / "started.log").open("a") as log:
            made = subprocess.Popen(
                self._command(script), stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, env=_ENVIRON
            )
        self._started.append(made)
        return made

    def close(self) -> None:
        """Kill what was started, and the box."""
        for each in [*self._started, self._holder]:
            each.kill()
            each.wait()
            if each.stdout:
                each.stdout.close()

    def _command(self, script: str) -> list[str]:
        enter = ["nsenter", "--target", str(self._holder.pid), *self._enter]
        return [*enter, "bash", "-c", _BEGIN + script, "box", str(self._own)]


_ENVIRON = {**program_env(), "PYTHONDONTWRITEBYTECODE": "1"}


def _packages() -> str:
    places = [str(place) for place in (ROOT, ROOT / "trainer", ROOT / "client")]
    return ":".join([*places, *(path for path in sys.path if "site-packages" in path)])


@contextmanager
def host_box(folder: Path, *isolated: str) -> Iterator[HostBox]:
    """A host below `folder`, gone at the end. `isolated`: more options of unshare, and of nsenter."""
    box = HostBox(folder, *isolated)
    try:
        box.ready()
        yield box
    finally:
        box.close()


def host(script: str, tmp_path: Path, *isolated: str) -> str:
    """Run one script on a host of its own; what it prints, errors with it."""
    with host_box(tmp_path / "box", *isolated) as box:
        return box.run(script)
