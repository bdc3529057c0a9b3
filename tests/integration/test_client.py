"""The typed client: what a notebook does, over the Unix socket and over HTTPS, against the daemon's API."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import spotsup
from spotsup import (
    Client,
    CommandRefusedError,
    DaemonUnreachableError,
    ForbiddenError,
    JobFailedError,
    NotFoundError,
    UsageError,
    contexts,
)
from spotsup import job as job_module
from spotsup.archive import pack_directory
from spotsup_simulator.world import World

from supervisor.api.app import create_app
from supervisor.api.security.unix_socket import bind_socket
from supervisor.api.serving import ApiServer
from supervisor.api.sweeps import Sweeps, add_sweeps
from supervisor.cli.login import save
from supervisor.market.admission import QueueRules
from supervisor.runtime.loop import Status
from tests.sim.harness import empty_world, service
from tests.sim.promises import jobs_of
from tests.sim.test_sweeps import run as run_sweeps
from tests.support.https import TOKEN, Https
from tests.support.interpreters import interpreter

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nothing"))
    monkeypatch.delenv("SPOTSUP_SOCKET", raising=False)
    monkeypatch.setattr(job_module, "POLL_S", 0.01)


@contextmanager
def unix(world: World, path: Path) -> Iterator[None]:
    """The API of a world on a Unix socket."""
    app = create_app(service(world), lambda: Status(0.0, "", {}, {}), world.clock, "0")
    add_sweeps(app, Sweeps(service(world), world.daemon.journal, world.clock, QueueRules()))
    server = ApiServer(app, bind_socket(path))
    server.start()
    try:
        yield
    finally:
        server.stop()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print()")
    return folder


def test_a_notebook_submits_waits_and_cancels_over_https(tmp_path: Path, code: Path) -> None:
    with Https.started(tmp_path / "state") as https:
        url = f"https://localhost:{https.port}"
        client = Client(url, token=TOKEN, ca=https.ca)
        assert client.me()["name"] == "ann"
        client.set_secret("HF_TOKEN", "hf-marked")
        assert [(row["name"], row["owner"]) for row in client.secrets()] == [("HF_TOKEN", "ann")]
        client.delete_secret("HF_TOKEN")
        with pytest.raises(NotFoundError, match="ann has no secret HF_TOKEN"):
            client.delete_secret("HF_TOKEN")
        job = client.submit("train.py --lr 0.1", name="mine", code=code, nodes={"min": 1, "desired": 2, "max": 4})
        status = job.status()
        assert (status.name, status.owner, status.desired, status.ended) == ("mine", "ann", 2, False)
        assert [each.name for each in client.jobs()] == ["mine"]
        first = job.events()[0]
        assert (first.kind, first.text) == ("submitted", "mine submitted")
        assert first not in job.events(after=first.id)
        assert client.events() == []
        assert first in client.events(jobs=True)
        assert job.scale(3).desired == 3
        assert job.limits(hours=5.0).raw["limits"]["hours"]["limit"] == 5.0
        assert list(job.logs()) == []
        with pytest.raises(TimeoutError, match=r"mine is \w+ after 0 s"):
            job.wait(0.0)
        with pytest.raises(CommandRefusedError, match="the name mine is in use"):
            client.submit("train.py", name="mine", code=code)
        job.cancel()
        https.world.run_until(lambda world: jobs_of(world)["mine"].record.ended, 600.0)
        with pytest.raises(JobFailedError, match="cancelled"):
            job.wait()
        assert job.wait(check=False).ended
        https.world.run_until(lambda world: not jobs_of(world)["mine"].billed, 600.0)
        job.delete()
        with pytest.raises(NotFoundError, match="no job is named 'mine'"):
            job.status()
        with pytest.raises(NotFoundError) as caught:
            client.job("none")
        assert caught.value.request
        with pytest.raises(ForbiddenError, match="revoked"):
            Client(url, token=TOKEN[:-1] + "x", ca=https.ca).jobs()
        with pytest.raises(UsageError, match="nodes"):
            client.submit("train.py", name="wrong", code=code, nodes={"min": 9, "desired": 1, "max": 1})
        with pytest.raises(DaemonUnreachableError, match=r"is not trusted .*: nothing was sent"):
            Client(url, token=TOKEN).jobs()
    assert https.authorizations
    with pytest.raises(DaemonUnreachableError, match="no spotsupd answers"):
        client.jobs()


def test_a_notebook_runs_a_sweep(tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTSUP_SOCKET", str(tmp_path / "s"))
    world = empty_world()
    with unix(world, tmp_path / "s"):
        client = Client()
        sweep = client.sweep(
            "train.py", {"lr": [0.1, 0.01]}, name="search", code=code, metric="accuracy", mode="max", parallel=5
        )
        assert repr(sweep) == "Sweep('search')"
        run_sweeps(world, 20)
        for name, accuracy in (("search-1", 0.7), ("search-2", 0.9)):
            world.nodes.trainings[name].metrics = {"accuracy": accuracy}
        run_sweeps(world, 5)
        first, second = sweep.results()
        assert (first.name, first.value, first.parameters) == ("search-2", 0.9, {"lr": 0.01})
        assert second.value == 0.7
        assert sweep.job(first).status().state == "running"
        with pytest.raises(TimeoutError, match="search is running after 0 s"):
            sweep.wait(0.0)
        for name in ("search-1", "search-2"):
            world.nodes.trainings[name].finish()
        run_sweeps(world, 60)
        done = client.sweep_named("search").wait()
        assert (done.state, done.best, done.metric, done.mode) == ("finished", "search-2", "accuracy", "max")
        refused: list[dict[str, Any]] = [{}, {"lr": "0.1"}, {"lr": []}]
        for wrong in refused:
            with pytest.raises(UsageError):
                client.sweep("train.py", wrong, name="wrong", code=code)
        with pytest.raises(UsageError, match="use Optuna with a pruner"):
            client.sweep("train.py", {"a": [1]}, name="wrong", code=code, early_stop=500)
        with pytest.raises(NotFoundError):
            client.sweep_named("none")
        other = client.sweep("train.py", {"a": [1]}, name="other", code=code)
        assert other.cancel().state == "cancelled"


def test_without_an_address_it_is_the_daemon_of_spotsupctl(tmp_path: Path) -> None:
    with Https.started(tmp_path / "state") as https, unix(empty_world(), tmp_path / "s"):
        os.environ["SPOTSUP_SOCKET"] = str(tmp_path / "s")
        try:
            assert Client().me()["token"] is None
            kept = contexts.Context("a", f"https://127.0.0.1:{https.port}", "ann", TOKEN, https.ca, own_ca=True)
            save(contexts.file_of_user(), contexts.Contexts({"a": kept}, "a"))
            assert Client(context="a").me()["token"] == "a" * 12
        finally:
            del os.environ["SPOTSUP_SOCKET"]
        assert Client().me()["name"] == "ann"
        save(contexts.file_of_user(), contexts.Contexts({"a": kept}))
        with pytest.raises(DaemonUnreachableError):
            Client().me()
        with pytest.raises(NotFoundError, match="no context"):
            Client(context="b")
        contexts.file_of_user().chmod(0o644)
        with pytest.raises(CommandRefusedError, match="others can read it"):
            Client(context="a")


def test_a_token_goes_over_https_alone() -> None:
    for wrong in ("http://spot.example.org", "https://ann:secret@spot.example.org", "https://x/path"):
        with pytest.raises(UsageError):
            Client(wrong, token=TOKEN)
    assert TOKEN not in repr(Client("https://spot.example.org", token=TOKEN, ca="").__dict__)


def test_it_is_used_by_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with unix(empty_world(), tmp_path / "s"):
        monkeypatch.setenv("SPOTSUP_SOCKET", str(tmp_path / "s"))
        client, found = Client(), []
        threads = [threading.Thread(target=lambda: found.append(client.jobs())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [[]] * 8


def test_a_client_that_is_forgotten_closes_its_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with unix(empty_world(), tmp_path / "s"):
        monkeypatch.setenv("SPOTSUP_SOCKET", str(tmp_path / "s"))
        client = Client()
        client.jobs()
        (idle,) = client._transport._idle
        client.jobs()
        assert client._transport._idle == [idle], "it was used again"
        del client
        assert idle.sock is None


def test_what_is_ignored_is_not_packed(code: Path) -> None:
    (code / ".spotsupignore").write_text("*.bin\n")
    (code / "large.bin").write_bytes(b"0" * 100)
    packed = pack_directory(code, limit_bytes=1000)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed.data))) as tar:
        assert "large.bin" not in tar.getnames()


def test_the_tar_of_nodes_unpacks_what_was_stored_and_what_was_compressed(tmp_path: Path) -> None:
    (code := tmp_path / "code").mkdir()
    content = {"a.py": b"pass\n" * 50_000, "weights.bin": os.urandom(300_000), "z.py": b"pass\n" * 50_000}
    for name, data in content.items():
        (code / name).write_bytes(data)
    packed = pack_directory(code, limit_bytes=10_000_000)
    assert len(packed.data) < 310_000
    subprocess.run(["tar", "-xzf", "-", "-C", tmp_path], input=packed.data, check=True)
    assert {name: (tmp_path / name).read_bytes() for name in content} == content


def test_the_oldest_interpreter_submits(tmp_path: Path, code: Path) -> None:
    program = "from spotsup import Client; print(Client().submit('train.py', name='old').status().name)"
    environ = {"HOME": str(tmp_path), "PYTHONPATH": str(REPO / "client"), "SPOTSUP_SOCKET": str(tmp_path / "s")}
    with unix(empty_world(), tmp_path / "s"):
        done = subprocess.run(
            [interpreter("3.9"), "-W", "error", "-c", program],
            cwd=code,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stdout) == (0, "old\n"), done.stderr


def test_its_version_is_that_of_the_others() -> None:
    from spotsup_trainer import __version__

    assert spotsup.__version__ == __version__
    assert (REPO / "client" / "LICENSE").read_bytes() == (REPO / "LICENSE").read_bytes()


def test_its_readme_is_what_it_does(tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.documents import blocks

    first, second, third = blocks(REPO / "client" / "README.md", "python")
    world = empty_world()
    with unix(world, tmp_path / "s"):
        monkeypatch.setenv("SPOTSUP_SOCKET", str(tmp_path / "s"))
        monkeypatch.chdir(code)
        names: dict[str, Any] = {}
        exec(compile(first.text, "README.md", "exec"), names)  # noqa: S102 - our own document
        assert names["job"].status().desired == 2
        names["job"].cancel()
        world.run_until(lambda world: jobs_of(world)["my-job"].record.ended, 600.0)
        with pytest.raises(JobFailedError):
            exec(compile(second.text, "README.md", "exec"), names)  # noqa: S102
        exec(compile(third.text, "README.md", "exec"), names)  # noqa: S102
        assert len(names["sweep"].results()) == 4
