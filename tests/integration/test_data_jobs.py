"""Data jobs: what a job file may ask for, how progress is read, and a run of it against a real etcd."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spotsup.archive import Archive
from spotsup_trainer.etcd import Etcd, EtcdUnavailableError
from spotsup_trainer.launcher.data_job import Command, DataJob, ReportedProgress, parse_progress
from spotsup_trainer.launcher.run_dir import Outcome, RunDir
from spotsup_trainer.rendezvous.client import RendezvousClient, RendezvousConfig
from spotsup_trainer.rendezvous.view import Rules
from spotsup_trainer.wire import Hint, Keys, Progress, Result, Round, decode, encode

from bootstrap.environment.lock import Lock
from bootstrap.environment.step import environment, environment_name
from bootstrap.facts import Facts
from bootstrap.model import Setup, Skip, Uv
from supervisor.api.jobs.changes import Scale, scaled_job
from supervisor.errors import CommandRefusedError, UsageError
from supervisor.new_job import new_job
from supervisor.spec import parse_spec
from tests.support.bucket import bucket
from tests.support.etcd_server import etcd_server

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "trainer" / "examples" / "copy_bucket.py"
JOB: dict[str, Any] = {"name": "fill", "kind": "data", "run": "cp -r /a '/b c' && echo \"it's done\""}


# -- what may be asked for ---------------------------------------------------------------------------------


def test_a_data_job_is_one_node_and_its_run_a_line_for_bash() -> None:
    spec = parse_spec(JOB)
    assert (spec.nodes.min, spec.nodes.desired, spec.nodes.max, spec.nodes.spares) == (1, 1, 1, 0)
    assert spec.command == (JOB["run"],)
    assert parse_spec({**JOB, "run": "it's a comment's matter"}).command == ("it's a comment's matter",)
    named = {"placement": {"cloud": "aws"}, "resources": {"instance_types": ["m7i.2xlarge"]}}
    assert parse_spec({**JOB, **named}).offer_queries[0].instance_types == ("m7i.2xlarge",)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"nodes": 2}, "a data job is one node: leave `nodes` out"),
        ({"nodes": {"min": 1, "spares": 1}}, "a data job is one node"),
        ({"resources": {"gpu": "T4", "gpus_per_node": 1}}, "a data job gets no GPU"),
        ({"placement": {"cloud": "gcp"}}, "name some, such as `resources: {instance_types: "),
        ({"kind": "date"}, "`kind` is 'date': input should be 'training' or 'data'"),
    ],
)
def test_what_does_not_fit_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_spec({**JOB, **change})
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "scale", [Scale(desired=2), Scale(max_nodes=2), Scale(spares=1), Scale(desired=2, max_nodes=2)]
)
def test_one_node_it_stays_whatever_is_asked_for_later(scale: Scale) -> None:
    job = new_job(parse_spec(JOB), "0" * 64, "submission", 0.0)
    with pytest.raises(CommandRefusedError, match=r"^cannot scale fill: a data job is one node; submit several"):
        scaled_job(job, scale)
    assert scaled_job(job, Scale(desired=1)) == job


def test_no_torch_is_needed() -> None:
    facts = Facts("me", "/home/me", "b", 5000, "/usr/bin/python3", (3, 12))
    lock = Lock("requirements", "r.txt", "0" * 64)
    setup = Setup("n1", b"{}", Archive.of(b"c"), Archive.of(b"t"), torch=False)
    assert isinstance(environment(facts, setup), Skip)
    prepared = environment(facts, replace(setup, setup="pip install boto3"))
    assert isinstance(prepared, tuple)
    assert "check that torch can be imported" not in [str(command) for command in prepared]
    built = environment(facts, replace(setup, lock=lock, uv=Uv("", Archive.of(b"uv"))))
    assert isinstance(built, tuple)
    assert " torch=false " in built[-1].script  # type: ignore[union-attr]
    assert environment_name(facts, replace(setup, lock=lock)) != environment_name(
        facts, replace(setup, lock=lock, torch=True)
    ), "no probe looked for it there"


# -- what the command says ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        ("spotsup: progress 0.4 copied 12 of 30 files", ReportedProgress(0.4, "copied 12 of 30 files")),
        ("  spotsup: progress 1\r", ReportedProgress(1.0)),
        ("spotsup: progress .25  a ", ReportedProgress(0.25, "a")),
        ("spotsup: progress 0", ReportedProgress(0.0)),
        ("spotsup: progress 1.5 too much", None),
        ("spotsup: progress -1", None),
        ("spotsup: progress 50%", None),
        ("spotsup: progress", None),
        ("the line says spotsup: progress 0.4", None),
        ("", None),
    ],
)
def test_a_line_has_a_fraction_and_a_text(line: str, progress: ReportedProgress | None) -> None:
    assert parse_progress(line) == progress


def test_a_long_text_is_cut() -> None:
    found = parse_progress(f"spotsup: progress 0.5 {'x' * 1000}")
    assert found is not None
    assert len(found.text) == 200


def command(line: str) -> tuple[Command, io.BytesIO]:
    out = io.BytesIO()
    return Command(line, {"PATH": "/usr/bin:/bin"}, out), out


def until(predicate: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20.0
    while not predicate():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_its_output_is_passed_on_and_its_status_returned() -> None:
    running, out = command("echo one; echo spotsup: progress 0.5 half >&2; echo; false | true")
    until(lambda: running.status() is not None)
    running.close()
    assert (running.status(), running.progress, running.last_line) == (
        1,
        ReportedProgress(0.5, "half"),
        "spotsup: progress 0.5 half",
    )
    assert out.getvalue() == b"one\nspotsup: progress 0.5 half\n\n"


def test_a_full_disk_of_the_log_does_not_end_it(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        running = Command(f"seq 100000; touch '{tmp_path}/done'", {"PATH": "/usr/bin:/bin"}, full)
        until(lambda: running.status() is not None)
        running.close()
    assert (running.status(), running.last_line) == (0, "100000")
    assert (tmp_path / "done").exists()


def test_a_bar_of_progress_that_never_ends_its_line_is_passed_on_as_it_comes() -> None:
    running, out = command(r"printf '10 %%\r20 %%\rspotsup: progress 0.2\r30 %%'; sleep 600")
    until(lambda: running.progress == ReportedProgress(0.2))
    assert out.getvalue() == b"10 %\r20 %\rspotsup: progress 0.2\r30 %"
    running.kill()
    assert running.last_line == "30 %"


def test_of_a_line_without_an_end_no_more_is_kept_than_its_end() -> None:
    running, out = command("head -c 300000 /dev/zero | tr '\\0' x; printf last; false")
    until(lambda: running.status() is not None)
    running.close()
    assert len(out.getvalue()) == 300004
    assert running.last_line.endswith("xxlast")
    assert len(running.last_line) <= 2**17


def test_it_ends_with_all_that_it_started() -> None:
    running, out = command("sleep 600 & echo $!; sleep 600")
    until(lambda: b"\n" in out.getvalue())
    started = Path(f"/proc/{int(out.getvalue())}")
    running.terminate()
    until(lambda: running.status() is not None)
    assert running.status() == 128 + 15
    running.close()
    until(lambda: not started.exists() or "Z" in (started / "stat").read_text().rpartition(")")[2].split()[0])


# -- in its job's rendezvous -------------------------------------------------------------------------------


class Node:
    """The launcher of one node, in a thread, with an etcd that the test writes the daemon's hints to."""

    def __init__(
        self,
        name: str,
        endpoint: str,
        folder: Path,
        line: str,
        failures: int = 0,
        client: type[RendezvousClient] = RendezvousClient,
    ) -> None:
        place = RendezvousConfig("test", "fill", name, f"{name}-1", "127.0.0.1", (endpoint,), 2.0)
        self.run_dir = RunDir(folder / name)
        self.outcome: Outcome | None = None
        self.job = DataJob(client(place, Rules(1, 1, failures)), self.run_dir, lambda _: command(line)[0])
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.outcome = self.job.run()

    def end(self) -> Outcome:
        self.thread.join(30.0)
        assert self.outcome is not None
        return self.outcome


KEYS = Keys("test")


def hint(etcd: Etcd, *nodes: str) -> None:
    etcd.put(KEYS.hint("fill"), encode(Hint(nodes, 1, 1)))


def test_a_command_runs_to_its_end_and_the_job_has_succeeded(tmp_path: Path) -> None:
    with etcd_server(tmp_path / "etcd") as server:
        etcd = Etcd([server.endpoint])
        hint(etcd, "a")
        node = Node("a", server.endpoint, tmp_path, "echo spotsup: progress 0.5 half")
        assert node.end() == Outcome("success", "the program ended well on every node")
        found = node.run_dir.progress()
        assert isinstance(found, Progress)
        assert (found.round, found.fraction, found.text, found.step) == (1, 0.5, "half", 0)
        etcd.close()


class RefusedSeat(RendezvousClient):
    """As where etcd is full: it is read, and takes nothing at first."""

    refusals = 4

    def finish(self, result: Result) -> None:
        if self.refusals:
            self.refusals -= 1
            raise EtcdUnavailableError("no space")
        super().finish(result)


def test_a_job_that_is_done_says_so_until_it_is_written(tmp_path: Path) -> None:
    with etcd_server(tmp_path / "etcd") as server, closing(Etcd([server.endpoint])) as etcd:
        hint(etcd, "a")
        node = Node("a", server.endpoint, tmp_path, f"echo x >>{tmp_path}/runs", client=RefusedSeat)
        assert node.end().outcome == "success"
        written = etcd.get(KEYS.result("fill"))
        assert written is not None
        assert decode(Result, written.value).outcome == "success"
        assert (tmp_path / "runs").read_text() == "x\n"


def test_failures_are_the_programs_own_and_counted(tmp_path: Path) -> None:
    with etcd_server(tmp_path / "etcd") as server:
        etcd = Etcd([server.endpoint])
        hint(etcd, "a")
        outcome = Node(
            "a", server.endpoint, tmp_path, f"echo x >>{tmp_path}/runs; echo no such bucket; exit 3", 2
        ).end()
        assert outcome.outcome == "failure"
        assert outcome.message.startswith("the program failed 3 times, 2 allowed; last on a, local rank 0, exit code 3")
        assert outcome.message.endswith("no such bucket")
        assert (tmp_path / "runs").read_text() == "x\n" * 3
        etcd.close()


def test_a_replacement_begins_when_the_doomed_node_has_stopped(tmp_path: Path) -> None:
    """Both append to one file: what one writes comes before what the other does."""
    log = tmp_path / "log"
    line = f"trap 'echo end of $0 >>{log}; exit 0' TERM; echo begin >>{log}; while :; do sleep 0.05; done"
    with etcd_server(tmp_path / "etcd") as server:
        etcd = Etcd([server.endpoint])
        hint(etcd, "a")
        first = Node("a", server.endpoint, tmp_path, line)
        until(lambda: log.exists() and log.read_text() == "begin\n")
        second = Node("b", server.endpoint, tmp_path, f"echo second >>{log}")
        time.sleep(0.3)
        assert log.read_text() == "begin\n", "it waits while it is not hinted"
        hint(etcd, "b")
        assert second.end().outcome == "success"
        assert log.read_text().splitlines() == ["begin", "end of bash", "second"]
        assert first.end() == Outcome("success", "the program ended well on every node")
        etcd.close()


def test_when_asked_to_leave_it_stops_the_command_and_publishes_that(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with etcd_server(tmp_path / "etcd") as server:
        etcd = Etcd([server.endpoint])
        hint(etcd, "a")
        node = Node("a", server.endpoint, tmp_path, f"echo up >{log}; sleep 600")
        until(log.exists)
        node.job.leave()
        assert node.end() == Outcome("left", "this node leaves")
        formed = etcd.get(KEYS.round("fill"))
        assert formed is not None
        assert decode(Round, formed.value).number == 1
        assert etcd.get(KEYS.result("fill")) is None
        etcd.close()


def test_a_cancelled_job_ends_its_command(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with etcd_server(tmp_path / "etcd") as server:
        etcd = Etcd([server.endpoint])
        hint(etcd, "a")
        node = Node("a", server.endpoint, tmp_path, f"echo $$ >{log}; sleep 600")
        until(lambda: log.exists() and log.read_text().endswith("\n"))
        etcd.put(KEYS.result("fill"), encode(Result("failure", "enough", 1)))
        assert node.end() == Outcome("failure", "enough")
        until(lambda: not Path(f"/proc/{int(log.read_text())}").exists())
        etcd.close()


# -- the example -------------------------------------------------------------------------------------------


def copy(url: str, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE), "--bucket", url, "--out", str(out), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_example_copies_rearranges_and_goes_on(tmp_path: Path) -> None:
    objects = {f"train/2024/{kind}/{number}.jpg": b"x" * number for kind in ("cat", "a dog") for number in range(1, 5)}
    with bucket(objects | {"train/": b"", "test/cat/1.jpg": b"no"}) as server:
        server.open.release(1000)
        server.refuse = 1
        done = copy(server.url, tmp_path, "--prefix", "train/")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-2:] == [
            "spotsup: progress 1.0000 0.0 of 0.0 MB",
            "8 objects are there, 8 of them copied by this run",
        ]
        (tmp_path / "cat" / "2024-1.jpg").unlink()
        (tmp_path / "cat" / "2024-2.jpg").write_bytes(b"half")
        server.served.clear()
        assert (
            copy(server.url, tmp_path, "--prefix", "train/")
            .stdout.splitlines()[-1]
            .endswith("2 of them copied by this run")
        )
        assert sorted(server.served) == ["train/2024/cat/1.jpg", "train/2024/cat/2.jpg"]
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.jpg")) == sorted(
        f"{kind}/2024-{number}.jpg" for kind in ("cat", "a dog") for number in range(1, 5)
    )


def test_the_example_overwrites_no_object_with_another(tmp_path: Path) -> None:
    with bucket({"train/2024/cat/7.jpg": b"one", "train/cat/2024-7.jpg": b"other"}) as server:
        done = copy(server.url, tmp_path / "out", "--prefix", "train/")
    assert (done.returncode, done.stdout) == (1, "")
    assert "would both be" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_example_reads_a_page_again_that_was_cut_off_and_removes_what_a_killed_run_left(tmp_path: Path) -> None:
    left = tmp_path / "cat" / ".0123.copy_bucket-part"
    left.parent.mkdir()
    left.write_bytes(b"half")
    with bucket({"train/cat/7.jpg": b"one"}) as server:
        server.open.release(1000)
        server.cut_off = 1
        done = copy(server.url, tmp_path, "--prefix", "train")
    assert (done.returncode, done.stderr) == (0, "")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["cat/7.jpg"]


@pytest.mark.parametrize("key", ["../../etc/passwd", "a/../../b", ".."])
def test_the_example_writes_nowhere_else(key: str, tmp_path: Path) -> None:
    with bucket({key: b"evil"}) as server:
        done = copy(server.url, tmp_path / "out")
    assert done.returncode == 1
    assert "names no file below" in done.stderr
    assert json.dumps(sorted(str(path) for path in tmp_path.rglob("*"))) == "[]"
