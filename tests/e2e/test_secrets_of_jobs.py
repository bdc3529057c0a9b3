"""A job's secret: its worker has the value, and nobody finds it anywhere else. Real daemon, etcd, machines, workers."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import Keys

from supervisor.journal.etcd_server import EmbeddedEtcd
from tests.support.programs import run_module
from tools.stack import ROOT, Stack

FIRST, SECOND = "hf-marked-first", "hf-marked-second"
MARK = "hf-marked"
KEYS = Keys("test")
JOB = """\
name: NAME
nodes: 1
code: CODE
run: train.py
secrets: [HF_TOKEN]
setup: test -n "$HF_TOKEN"
"""
TRAIN = """\
import hashlib, os, time
print("worker:", hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest(), flush=True)
time.sleep(3600)
"""


def secret(stack: Stack, *arguments: str, stdin: str = "") -> str:
    command = [sys.executable, "-m", "supervisor.cli.ctl", "--socket", str(stack.socket), "secret", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    return done.stdout + done.stderr


def submit(stack: Stack, folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    file = folder / f"{name}.yaml"
    file.write_text(JOB.replace("NAME", name).replace("CODE", str(folder / "code")))
    return stack.ctl("submit", str(file))


def worker_has(stack: Stack, name: str, value: str) -> bool:
    return f"worker: {hashlib.sha256(value.encode()).hexdigest()}" in stack.ctl("logs", name).stdout


def end(stack: Stack, name: str) -> None:
    assert stack.ctl("cancel", name).returncode == 0
    stack.wait_for(lambda: stack.ask("status", name)["nodes"]["active"] == 0, 120.0, f"the end of {name}")


def files_with(folder: Path, mark: str) -> Iterator[Path]:
    """Files that hold the mark: etcd's own, logs, what machines have."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            if mark.encode() in path.read_bytes():
                yield path
        except FileNotFoundError:
            continue


def values(stack: Stack) -> dict[str, bytes]:
    """All that etcd holds."""
    with closing(Etcd([EmbeddedEtcd(stack.folder / "state" / "etcd").endpoint], timeout_s=10.0)) as etcd:
        return {kv.key: kv.value for kv in etcd.range("/").kvs}


def answers(stack: Stack, name: str) -> Iterator[str]:
    """What the API and the command line say of a job."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(stack.socket)), base_url="http://x", timeout=30.0) as http:
        node = stack.ask("nodes")[0]
        for path in (
            *("/v1/jobs", "/v1/secrets", "/v1/audit", "/v1/nodes", "/v1/events?jobs=true", "/v1/queue", "/metrics"),
            *(f"/v1/jobs/{name}{rest}" for rest in ("", "/spec", "/events", "/logs", "/cost")),
            f"/jobs/{name}",
        ):
            reply = http.get(path)
            assert reply.status_code == 200, (path, reply.text)
            yield reply.text
        assert node["job"] == name
    for command in (("status", name), ("events", name), ("list",), ("audit",)):
        yield stack.ctl(*command).stdout
        yield json.dumps(stack.ask(*command))


def exported(stack: Stack, tmp_path: Path) -> dict[str, bytes]:
    file = tmp_path / "journal.gz"
    config = str(stack.folder / "spotsupd.toml")
    done = run_module("supervisor.cli.daemon", "export", str(file), "--config", config, "--embedded-etcd")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    return {row["key"]: base64.b64decode(row["value"]) for row in rows if "key" in row}


def test_the_worker_has_the_value_and_nobody_else_finds_it(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    refused = submit(stack, tmp_path, "first")
    assert refused.returncode == 5
    assert "has no secret HF_TOKEN: `spotsupctl secret set HF_TOKEN`" in refused.stderr

    said = secret(stack, "set", "HF_TOKEN", stdin=f"{FIRST}\n")
    assert submit(stack, tmp_path, "first").returncode == 0
    stack.wait_for(lambda: worker_has(stack, "first", FIRST), 120.0, "the worker's line")
    holders = list(files_with(stack.folder, MARK))
    assert {path.name for path in holders} == {"env.sh"}
    assert [stat.S_IMODE(path.stat().st_mode) for path in holders] == [0o600]
    stored = values(stack)
    assert [key for key in stored if "/secrets/" in key]
    assert [key for key, value in stored.items() if MARK.encode() in value] == []
    saved = exported(stack, tmp_path)
    assert [key for key in saved if key.startswith("secrets/")], "the sealed value travels"
    assert [key for key, value in saved.items() if MARK.encode() in value] == []
    assert MARK not in "".join((said, *answers(stack, "first"), stack.ctl("submit", "--explain", "x").stdout))

    # Another value: nodes that are prepared from then on have it.
    said = secret(stack, "set", "HF_TOKEN", stdin=SECOND)
    assert "nodes of first have it once they are replaced" in said
    assert submit(stack, tmp_path, "second").returncode == 0
    stack.wait_for(lambda: worker_has(stack, "second", SECOND), 120.0, "the other value")
    assert worker_has(stack, "first", FIRST)

    for name in ("first", "second"):
        end(stack, name)
    stack.wait_for(lambda: not stack.machines(), 60.0, "the machines to be released")
    assert list(files_with(stack.folder, MARK)) == [], "nothing of it is left where a job has ended"
    assert MARK not in secret(stack, "delete", "HF_TOKEN")
    assert not [key for key in values(stack) if "/secrets/" in key]
    refused = submit(stack, tmp_path, "third")
    assert (refused.returncode, "has no secret HF_TOKEN" in refused.stderr) == (5, True)
