"""The daemon's host: a stock machine with what docs/install.md installs there, reached as its operator reaches it.

.tools/stock/daemon-wheels-HASH/   what spotsup's wheels depend on, for the machine's Python
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from pathlib import Path

from bootstrap import SshHost
from bootstrap.connect import connected
from bootstrap.model import Run
from provisioners.userdata import user_data
from supervisor.identity import Identity
from tests.acceptance.stock import Network, StockMachine, one_builder
from tools.setup.errors import SetupError, output_tail, run

PACKAGES = ("etcd-server", "openssh-client", "pipx")
OPERATOR = "admin"
NUMBER = -120  # the first one's address ends in 10, a second one's in 11: outside of the nodes' part of the network
DOWNLOAD_TIMEOUT_S = 900.0
LOGIN_S = 120.0
# Of a clone, not part of a distribution.
_NOT_COPIED = {"build", "tests", "benchmarks"}


def build_wheels(clone: Path, folder: Path, version: str = "", schema: int = 0) -> list[Path]:
    """The wheels as `make dist` builds them, in `folder`; `version` and `schema` of the journal in place of ours.

    Raises SetupError.
    """
    source = folder / "source"
    source.mkdir(parents=True)
    for path in clone.iterdir():
        if path.name.startswith(".") or path.name in _NOT_COPIED:
            continue
        if path.is_dir():
            shutil.copytree(path, source / path.name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy(path, source / path.name)
    if version:
        for part in ("trainer", "client", "simulator"):
            (about,) = (source / part).glob("spotsup*/__init__.py")
            old = about.read_text().partition('__version__ = "')[2].partition('"')[0]
            _substitute(about, f'__version__ = "{old}"', f'__version__ = "{version}"')
            _substitute(source / "pyproject.toml", f"spotsup-{part}=={old}", f"spotsup-{part}=={version}")
        _substitute(source / "simulator" / "pyproject.toml", f"spotsup[daemon]=={old}", f"spotsup[daemon]=={version}")
    if schema:
        model = source / "supervisor" / "model.py"
        now = model.read_text().partition("\nSCHEMA_VERSION = ")[2].partition("\n")[0]
        _substitute(model, f"\nSCHEMA_VERSION = {now}\n", f"\nSCHEMA_VERSION = {schema}\n")
    made = folder / "dist"
    for home in (source / "trainer", source / "client", source / "simulator", source):
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(made)]
        done = run(command, cwd=home, timeout_s=120.0, environ={**os.environ, "PIP_NO_INDEX": "1"})
        if done.returncode != 0:
            raise SetupError(f"hatchling failed: {output_tail(done)}")
    shutil.rmtree(source)
    return sorted(made.glob("*.whl"))


def _substitute(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new))


def ensure_daemon_wheels(clone: Path, ours: list[Path]) -> Path:
    """What `spotsup[aws]` depends on, and what pipx wants of its own. Raises SetupError."""
    given = [(clone / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    digest = hashlib.sha256(b"".join(given)).hexdigest()[:16]
    folder = clone / ".tools" / "stock" / f"daemon-wheels-{digest}"
    with one_builder(clone):
        if folder.is_dir():
            return folder
        scratch = folder.with_name(f"new-{digest}")
        shutil.rmtree(scratch, ignore_errors=True)
        wanted = [f"{path}[aws]" if path.name.startswith("spotsup-") else str(path) for path in ours]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(scratch)]
        command += ["--python-version", "3.11", "--only-binary", ":all:"]
        command += ["--constraint", str(clone / "constraints.txt")]
        done = run([*command, *wanted, "pip", "setuptools", "wheel"], cwd=clone, timeout_s=DOWNLOAD_TIMEOUT_S)
        if done.returncode != 0:
            raise SetupError(f"pip failed: {output_tail(done)}")
        for path in scratch.glob("spotsup*.whl"):
            path.unlink()
        scratch.rename(folder)
    return folder


class Control:
    """The machine. Its operator has sudo, as on a rented one."""

    def __init__(self, root: Path, network: Network, folder: Path, identity: Identity, name: str = "control") -> None:
        """Not booted yet."""
        self.name = name
        self.machine = StockMachine(root, network, folder, name, NUMBER)
        self._identity, self._network = identity, network

    @property
    def address(self) -> str:
        """Its address."""
        return self.machine.address

    def boot(self, places: dict[Path, str]) -> None:
        """With folders and files at other places. Its firewall lets nodes reach etcd, and nothing else."""
        keys = (self._identity.client_key().public,)
        self.machine.boot(
            user_data(self.name, OPERATOR, keys, self._identity.host_key(self.name)),
            admits=f"ip saddr {self._network.members} tcp dport 2379 accept",
            binds=places,
        )
        self.machine.await_sshd()

    def target(self) -> SshHost:
        """Its login."""
        return SshHost(
            self.address,
            22,
            OPERATOR,
            self._identity.host_key(self.name).public,
            self._identity.client_key().private_openssh,
        )

    def run(self, script: str, timeout_s: float = 60.0) -> str:
        """What a script prints, as the operator. Raises CommandError where it fails."""
        limit = time.monotonic() + LOGIN_S + timeout_s
        with connected(self.target(), self.name, time.monotonic, limit) as shell:
            return shell.run(Run(script.strip().splitlines()[0][:60], script, timeout_s)).stdout.strip()
