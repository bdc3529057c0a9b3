"""A job that brings its own environment: built once, and the next node finds it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tools.stack import Stack

pytestmark = pytest.mark.timeout(600)

JOB = """\
name: locked
nodes: {min: 1, desired: 1, max: 2}
environment: requirements.txt
run: train.py --out {out}
"""

PROGRAM = """
import os, sys, time
from pathlib import Path
import torch.distributed as dist
dist.init_process_group("gloo")
Path(sys.argv[2], os.environ["SPOTSUP_NODE_ID"]).write_text(f"{sys.prefix} {dist.get_world_size()}")
time.sleep(3600)
"""


def a_wheel() -> bytes:
    """Called torch, it brings this computer's: there is no network in tests."""
    buffer = io.BytesIO()
    info = "torch-2.13.dist-info"
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr("torch_here.pth", f"{Path(torch.__file__).parents[1]}\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.13\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path / "a stack", cluster="test")
    stack.prepare()
    config = stack.folder / "spotsupd.toml"
    config.write_text(config.read_text().replace("[node]", f"[node]\ncache = {json.dumps(str(tmp_path / 'cache'))}"))
    stack.start_daemon()
    yield stack
    assert stack.close().processes == ()


def test_nodes_train_in_the_environment_that_the_first_of_them_built(stack: Stack, tmp_path: Path) -> None:
    code, out, cache = tmp_path / "code", tmp_path / "out", tmp_path / "cache"
    (code / "wheels").mkdir(parents=True)
    out.mkdir()
    (code / "wheels/torch-2.13-py3-none-any.whl").write_bytes(a_wheel())
    (code / "requirements.txt").write_text("--no-index\n--find-links ./wheels\ntorch\n")
    (code / "train.py").write_text(PROGRAM)
    (code / "job.yaml").write_text(JOB.replace("{out}", str(out)))
    assert stack.ctl("submit", str(code / "job.yaml")).returncode == 0
    stack.wait_for(lambda: len(list(out.iterdir())) == 1, 240.0, "the first node to train")
    (built,) = [path for path in cache.iterdir() if path.is_symlink()]
    when = built.lstat().st_mtime
    assert stack.ctl("scale", "locked", "2").returncode == 0
    stack.wait_for(lambda: sum(path.read_text().endswith(" 2") for path in out.iterdir()) == 2, 120.0, "both to train")
    assert {path.read_text() for path in out.iterdir()} == {f"{built} 2"}
    assert built.lstat().st_mtime == when
    assert len(list(cache.glob(f"{built.name}-*"))) == 1
    assert stack.ctl("cancel", "locked").returncode == 0


def test_code_without_its_lock_is_refused_before_any_launch(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("")
    (tmp_path / "code/job.yaml").write_text(JOB.replace("{out}", "x"))
    done = stack.ctl("submit", str(tmp_path / "code/job.yaml"))
    assert done.returncode == 2
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(
        "spotsupctl: `environment: requirements.txt` needs requirements.txt, which is not in the code"
    )
    assert stack.machines() == []
