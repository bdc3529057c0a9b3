"""Stock machines whose `python3` is each version that nodes may bring: bootstrap by SSH, an environment, the agent, a
small job. One whose python3 is too old, for which uv fetches another; and one that is logged in to as root."""

from __future__ import annotations

import io
import shlex
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from spotsup_trainer.wire import Ended

from bootstrap.agent.unit import unit_name
from tests.acceptance import updates
from tests.acceptance.installation import Installation, done_by, eventually, seconds_of
from tests.acceptance.stock import USER, asked_for, skipped_where_impossible, wheels_served, why_not
from tests.support.interpreters import INTERPRETERS, archive_of, interpreter, list_of, relocatable

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900, func_only=True)]

OF_DEBIAN = "3.11"
TOO_OLD = "3.8"
BROUGHT = "3.12"
JOB_S = 120.0
# It needs no torch, so it is a job that prepares data.
SPEC = {"kind": "data", "environment": "requirements.txt", "run": "python about.py"}
ABOUT = """\
import getpass, platform, sys
import stock_probe
print(platform.python_version(), sys.base_prefix, getpass.getuser(), stock_probe.HERE)
print("spotsup: progress 1")
"""


def a_wheel() -> bytes:
    """A package, to see that the environment has what was asked for."""
    buffer, info = io.BytesIO(), "stock_probe-1.0.dist-info"
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr("stock_probe.py", "HERE = 'by uv'\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: stock-probe\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


class Place:
    """An installation for all tests here; each prepares a machine of its own for a job of its own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        code, wheels, self.pythons = folder / "code", folder / "wheels", folder / "pythons"
        for each in (code, wheels, self.pythons):
            each.mkdir()
        (code / "about.py").write_text(ABOUT)
        (code / "requirements.txt").write_text("stock-probe\n")
        (wheels / "stock_probe-1.0-py3-none-any.whl").write_bytes(a_wheel())
        # A network of its own comes first, so the address is there.
        self.installation = Installation(folder, stack, wheels, code, {})
        self.mirror = stack.enter_context(wheels_served(self.pythons, self.installation.network.host))

    def run(self, name: str, version: str, user: str) -> tuple[str, str]:
        """Prepare a machine with this python3, run the job to its end: what it has printed, and what was done for its
        environment."""
        installation = self.installation
        binds, after = {}, ""
        if version != OF_DEBIAN:
            python = interpreter(version)
            program, library = relocatable(python, self.folder), python.resolve().parents[1] / "lib"
            # Where a distribution has its own. cloud-init alone needs Debian's python3, and has nearly ended then.
            after = f"ln -sfn {program.name} /usr/bin/python3"
            binds = {program: f"/usr/bin/{program.name}", library / program.name: f"/usr/lib/{program.name}"}
            binds |= {each: f"/usr/lib/{each.name}" for each in library.glob("libpython3.*.so.*")}
        if user == "root":
            after = "mv /usr/bin/sudo /usr/bin/sudo-that-is-gone"  # a minimal image for root has none
        job = installation.submit({**SPEC, "name": name})
        machine = installation.boot(user, binds, after)
        try:
            machine.await_sshd()
            report = installation.prepare(machine)
            print(f"python3 {version}, {user}: login {report.connected_s:.1f} s, {seconds_of(report)}", flush=True)
            done = done_by(report)
            assert "wait for apt and dpkg" in done["hygiene"], "unattended-upgrades was at work"
            as_root = "" if user == "root" else "sudo "
            assert installation.run(machine, f"{as_root}sh -c {shlex.quote(updates.LOOK)}") == updates.UPGRADED
            assert ".".join(map(str, report.facts.python_version)).startswith(f"{version}.")
            ended = eventually(
                "the job ends",
                lambda: installation.message(installation.keys.ended(job.name, machine.node), Ended),
                JOB_S,
                installation.why,
            )
            logs = installation.etcd.range(installation.keys.logs(job.name, machine.node)).kvs
            printed = b"".join(chunk.value for chunk in logs).decode()
            assert ended.outcome == "success", f"{ended}\n{printed}"
            # The unit was systemd's, in whose words its user stands.
            unit = installation.run(machine, f"{as_root}journalctl -u {unit_name(machine.node)} -o cat --no-pager")
            assert "Started" in unit, unit
            assert installation.run(machine, "id -un") == user
            return printed, done["environment"]
        finally:
            machine.kill()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        with skipped_where_impossible():
            made = Place(tmp_path_factory.mktemp("pythons"), stack)
        yield made


def _needs_time() -> None:
    if not asked_for():
        pytest.skip("the oldest and the newest are enough here; all of them in make acceptance")


@pytest.mark.parametrize("version", INTERPRETERS)
def test_a_job_runs_where_python3_is_any_version_that_nodes_may_bring(version: str, place: Place) -> None:
    if version not in (INTERPRETERS[0], INTERPRETERS[-1]):
        _needs_time()
    printed, built = place.run(f"on{version.replace('.', '')}", version, USER)
    assert f"{version}." in printed
    assert f" /usr {USER} by uv" in printed
    assert "unpack uv" in built


def test_a_job_runs_where_the_daemon_logs_in_as_root(place: Place) -> None:
    printed, _ = place.run("byroot", OF_DEBIAN, "root")
    assert " /usr root by uv" in printed


def test_uv_fetches_an_interpreter_for_a_machine_whose_python3_is_too_old(place: Place) -> None:
    """From a mirror in the node's own network, as [node.env] says."""
    _needs_time()
    brought = interpreter(BROUGHT)
    shown = subprocess.run([brought, "-V"], capture_output=True, text=True, check=True).stdout
    version = shown.split()[1]
    archive = place.pythons / "cpython.tar.gz"
    archive_of(brought, archive)
    (place.pythons / "pythons.json").write_text(list_of(version, f"{place.mirror}/{archive.name}", archive))
    place.installation.set_env({"UV_PYTHON_DOWNLOADS_JSON_URL": f"{place.mirror}/pythons.json"})
    printed, _ = place.run("brought", TOO_OLD, USER)
    assert f"{version} " in printed
    assert f"/.spotsup/environments/python/cpython-{BROUGHT}" in printed
