"""What docs/training/workers.md says a worker finds in its environment is there, over a change of the nodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from spotsup_trainer.wire import AgentConfig, Metadata, encode

from tests.e2e.launching import eventually, kill_all, processes_with
from tests.e2e.ranks import TRAINING

PROGRAM = """
import json, os, pathlib, time
out = pathlib.Path(os.environ["SPOTSUP_CHECKPOINT_DIR"], f"{os.environ['SPOTSUP_ROUND']}-{os.environ['RANK']}.tmp")
out.write_text(json.dumps(dict(os.environ)))
out.replace(out.with_suffix(".json"))
time.sleep(600)
"""


@contextmanager
def agent(node: str, addr: str, endpoint: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The agent of a node with two workers, as bootstrap starts it; nothing of it is left."""
    config = AgentConfig(
        cluster="test",
        job="resnet",
        task_id="resnet-7",
        node=node,
        addr=addr,
        etcd_endpoints=(endpoint,),
        metadata=Metadata("none"),
        python=sys.executable,
        code_dir=str(folder),
        run_dir=str(folder / node / "run"),
        log_dir=str(folder / node / "log"),
        checkpoints=str(folder / "checkpoints"),
        output=str(folder / "output"),
        resume_from=("/earlier", "s3://bucket/earlier", "/older"),
        command=("program.py",),
        min_nodes=1,
        max_nodes=2,
        nproc_per_node=2,
        env={"LR": "0.1", "OMP_NUM_THREADS": "1"},
    )
    (folder / node).mkdir()
    (folder / node / "agent.json").write_bytes(encode(config))
    command = [sys.executable, "-m", "spotsup_trainer.agent", "--config", str(folder / node / "agent.json")]
    marked = os.environ | {"SPOTSUP_TEST_NODE": str(folder / node)}
    with (folder / node / "agent.log").open("wb") as log:
        process = subprocess.Popen(command, env=marked, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        kill_all(processes_with("SPOTSUP_TEST_NODE", str(folder / node)))
        process.wait()


def test_every_variable_of_the_document_is_there_and_means_what_it_says(
    etcd_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it in a process that compiles
    _, _, section = (TRAINING / "workers.md").read_text().partition("## The environment of a worker\n")
    names = re.findall(
        r"`([A-Z_]+)`", "".join(re.findall(r"^\| (`[^|]*) \|", section.partition("\n## ")[0], re.MULTILINE))
    )
    assert len(names) >= 21
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "checkpoints").mkdir()

    def workers(world: int, after: int) -> list[dict[str, str]]:
        """What all workers of a later round with so many have in their environment."""

        def look() -> list[dict[str, str]]:
            found = [json.loads(file.read_text()) for file in (tmp_path / "checkpoints").glob("*.json")]
            for number in {int(environ["SPOTSUP_ROUND"]) for environ in found if int(environ["SPOTSUP_ROUND"]) > after}:
                ranks = [environ for environ in found if environ["SPOTSUP_ROUND"] == str(number)]
                if len(ranks) == int(ranks[0]["WORLD_SIZE"]) == world:
                    return sorted(ranks, key=lambda environ: int(environ["RANK"]))
            return []

        found = eventually(f"{world} workers after round {after}", look)
        for rank, environ in enumerate(found):
            assert [name for name in names if not environ.get(name)] == [
                "SPOTSUP_CHECKPOINT_URL"
            ]  # the place is a folder
            assert environ["LR"] == "0.1"
            assert (environ["RANK"], environ["WORLD_SIZE"]) == (str(rank), str(world))
            assert (environ["LOCAL_RANK"], environ["LOCAL_WORLD_SIZE"]) == (str(rank % 2), "2")
            assert (environ["GROUP_RANK"], environ["GROUP_WORLD_SIZE"]) == (str(rank // 2), str(world // 2))
            assert (environ["SPOTSUP_JOB"], environ["SPOTSUP_TASK_ID"]) == ("resnet", "resnet-7")
            assert int(environ["TORCHELASTIC_RESTART_COUNT"]) == int(environ["SPOTSUP_ROUND"]) - 1
            assert environ["SPOTSUP_CHECKPOINT_DIR"] == str(tmp_path / "checkpoints")
            assert environ["SPOTSUP_OUTPUT_DIR"] == str(tmp_path / "output")
            assert Path(environ["SPOTSUP_OUTPUT_DIR"]).is_dir()
            assert environ["SPOTSUP_RESUME_FROM"] == "/earlier:s3://bucket/earlier:/older"
            assert environ["MASTER_ADDR"] == environ["SPOTSUP_NODE_ADDRS"].split(",")[0]
            node = environ["SPOTSUP_NODE_ID"]
            assert environ["SPOTSUP_LOG_DIR"] == str(tmp_path / node / "log")
            assert Path(environ["SPOTSUP_LOG_DIR"]).is_dir()
            files_of_round = [environ[f"SPOTSUP_{name}_FILE"] for name in ("YIELD", "SESSION", "PARKED", "PROGRESS")]
            assert all(file.startswith(environ["SPOTSUP_RUN_DIR"] + "/") for file in files_of_round)
            caches = [environ[name] for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
            assert caches == [f"{environ['SPOTSUP_RUN_DIR']}/compiled/{name}" for name in ("inductor", "triton")]
        return found

    with agent("a", "127.0.0.71", etcd_endpoint, tmp_path) as first:
        (alone, _) = workers(2, after=0)
        assert (alone["SPOTSUP_NODE_ID"], alone["SPOTSUP_NODE_ADDRS"]) == ("a", "127.0.0.71")
        with agent("b", "127.0.0.72", etcd_endpoint, tmp_path):
            both = workers(4, after=int(alone["SPOTSUP_ROUND"]))
            assert [environ["SPOTSUP_NODE_ID"] for environ in both] == ["a", "a", "b", "b"]
            assert {environ["SPOTSUP_NODE_ADDRS"] for environ in both} == {"127.0.0.71,127.0.0.72"}
            assert {(environ["MASTER_ADDR"], environ["MASTER_PORT"]) for environ in both} != {
                (alone["MASTER_ADDR"], alone["MASTER_PORT"])
            }
            first.terminate()  # as the daemon, or a person, lets a node leave
            left = workers(2, after=int(both[0]["SPOTSUP_ROUND"]))
            assert {(environ["SPOTSUP_NODE_ID"], environ["MASTER_ADDR"]) for environ in left} == {("b", "127.0.0.72")}
