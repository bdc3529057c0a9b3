"""What is imported before workers are forked, with real processes: what must not be there is found and left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from spotsup_trainer.launcher.preparation import Preparation
from spotsup_trainer.launcher.prepare import MAX_LEFT_OUT
from spotsup_trainer.launcher.program_imports import BY_OPTIMIZERS

from tests.e2e.launching import processes_with
from tests.support.combinations import others_nightly

pytestmark = pytest.mark.long

MARK = "SPOTSUP_TEST_PRELOAD"
# A launcher as far as preparing goes: prints what was left out, and what a worker finds.
HOST = """
import json, os, sys
from spotsup_trainer.launcher import prepare
from spotsup_trainer.launcher.program_imports import Import
from spotsup_trainer.launcher.worker import WorkerRequest

imports, limit_s, known = map(json.loads, sys.argv[1:])
seen = []
server, left_out = prepare.start_prepared(
    [Import(module, tuple(names)) for module, names in imports], ("train.py", "--lr=1"), known, seen.append, limit_s
)
print(json.dumps({"left_out": left_out, "seen": seen}), flush=True)
pid = server.spawn(WorkerRequest("script", (os.environ["WORKER"],), {**os.environ, "RANK": "1"}, 0))
server.wait([pid], 60)
print(json.dumps(server.exit_code(pid)), flush=True)
server.close()
"""
WORKER = """
import json, os, sys, threading
names = [name for name in sys.modules if name.startswith("sample_")]
print(json.dumps({
    "modules": names, "set": os.environ.get("SET_AT_IMPORT"), "rank": os.environ["RANK"], "argv": sys.argv[0],
    "torch_seed": sys.modules["torch"].initial_seed() if "torch" in sys.modules else 0,
    "torch_check": os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"), "threads": threading.active_count(),
}), flush=True)
"""
OPTIMIZER = """
import json, sys, threading, torch
before = set(sys.modules)
optimizer = torch.optim.AdamW(torch.nn.Linear(2, 2).parameters())
imported = [name for name in set(sys.modules) - before if name.startswith("torch")]
print(json.dumps({"imported": imported, "threads": threading.active_count()}), flush=True)
"""
MODULES = {
    "good": "import os; os.environ['SET_AT_IMPORT'] = 'yes'",
    "lazy": "import importlib\ndef __getattr__(name):\n    return importlib.import_module('sample_' + name)",
    "behind": "print('imported', flush=False)",
    "thread": "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "jemalloc": (
        "import threading, time; own = threading.Thread(target=time.sleep, args=(600,), daemon=True); own.start()\n"
        "open(f'/proc/self/task/{own.native_id}/comm', 'w').write('jemalloc_bg_thd')"
    ),
    "short": "import threading; threading.Thread(target=int).start()",
    "rank": "import os; RANK = int(os.environ.get('LOCAL_RANK', '0'))",
    "master": "import os; HERE = 'MASTER_ADDR' in os.environ",
    "threads": "import os; THREADS = os.getenv('OMP_NUM_THREADS')",
    "copy": "import os; COPY = dict(os.environ)",
    "seeds": "import random; random.seed(7)",
    "seeds_numpy": "import numpy; numpy.random.seed(7)",
    "seeds_torch": "import torch; torch.manual_seed(7)",
    "draws": "import random, numpy; NUMBERS = [random.random() + numpy.random.random() for _ in range(9)]",
    "raises": "raise RuntimeError('no licence')",
    "exits": "import sys; sys.exit(3)",
    "dies": "import os; os._exit(3)",
    "child": "import subprocess; CHILD = subprocess.Popen(['sleep', '600'])",
    "slow": "import time; time.sleep(600)",
    "whole/__init__": "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "whole/one": "",
    "whole/two/__init__": "",
    "whole/two/three": "",
    "argv": "import sys; assert sys.argv == ['train.py', '--lr=1'], sys.argv",
}


def prepared(folder: Path, *modules: str, limit_s: float = 60.0, **known: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was left out of these modules, and what a worker then finds. Nothing is left behind."""
    imports = [(f"sample_{module}", names.split()) for module, _, names in (each.partition(":") for each in modules)]
    return hosted(folder, imports, WORKER, limit_s, known)


def hosted(
    folder: Path, imports: list[tuple[str, list[str]]], worker: str, limit_s: float, known: dict[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same of any imports, and what a program says that a worker runs."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    for name, text in MODULES.items():
        file = site / f"sample_{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    (folder / "worker.py").write_text(textwrap.dedent(worker))
    own = {"PYTHONPATH": str(site), "WORKER": str(folder / "worker.py"), MARK: str(folder)}
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | own
    command = [sys.executable, "-c", HOST, *(json.dumps(each) for each in (imports, limit_s, known))]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed.count("imported") <= 1, "once, and not by each worker again"
    lines = [json.loads(line) for line in printed if line != "imported"]
    assert lines[-1] == 0
    deadline = time.monotonic() + 10
    while left := processes_with(MARK, str(folder)):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    return lines[0], lines[1]


def test_workers_have_what_was_imported_and_its_environment_and_their_own(tmp_path: Path) -> None:
    host, worker = prepared(tmp_path, "good", "lazy:behind", "short", "copy", "argv")
    assert host["left_out"] == {}
    assert host["seen"] == [f"sample_{name}" for name in ("good", "lazy", "short", "copy", "argv")]
    assert set(worker["modules"]) == {f"sample_{name}" for name in ("good", "lazy", "behind", "short", "copy", "argv")}
    assert (worker["set"], worker["rank"], worker["threads"]) == ("yes", "1", 1)
    assert worker["argv"] == str(tmp_path / "worker.py")
    assert worker["torch_check"] is None, "set only while modules are imported"


def test_a_module_whose_only_thread_is_one_of_jemallocs_is_imported(tmp_path: Path) -> None:
    """pyarrow has it. A worker is without it, and frees its memory by itself."""
    host, worker = prepared(tmp_path, "jemalloc")
    assert host["left_out"] == {}
    assert (worker["modules"], worker["threads"]) == (["sample_jemalloc"], 1)


REASONS = [
    ("thread", "it started 1 thread, which a worker would not have"),
    ("rank", "it reads LOCAL_RANK when it is imported, which differs from worker to worker"),
    ("master", "it reads MASTER_ADDR when it is imported, which differs from worker to worker"),
    ("threads", "it reads OMP_NUM_THREADS when it is imported, which differs from worker to worker"),
    ("seeds", "it seeds random numbers when it is imported, which a fork loses"),
    ("seeds_numpy", "it seeds random numbers when it is imported, which a fork loses"),
    ("raises", "it raised RuntimeError: no licence"),
    ("exits", "it raised SystemExit: 3"),
    ("dies", "it ended the process"),
    ("child", "it started a process"),
    ("missing", "it raised ModuleNotFoundError: No module named 'sample_missing'"),
]


@pytest.mark.parametrize(("module", "why"), others_nightly(REASONS[:2], REASONS))
def test_a_module_that_must_not_be_there_before_a_fork_is_left_out_and_the_others_are_there(
    tmp_path: Path, module: str, why: str
) -> None:
    host, worker = prepared(tmp_path, "good", module, "behind")
    assert host["left_out"] == {f"sample_{module}": why}
    assert set(worker["modules"]) == {"sample_good", "sample_behind"}


WHOLE = [("whole", "whole.one", "whole.two.three"), ("whole.two.three", "whole.one")]


@pytest.mark.parametrize("modules", [WHOLE[0], pytest.param(WHOLE[1], marks=pytest.mark.nightly)])
def test_a_package_that_must_not_be_there_is_tried_once_and_none_of_its_modules(
    tmp_path: Path, modules: tuple[str, ...]
) -> None:
    host, worker = prepared(tmp_path, "good", *modules, "behind")
    assert host["left_out"] == {"sample_whole": "it started 1 thread, which a worker would not have"}
    assert host["seen"] == ["sample_good", "sample_whole", "sample_good", "sample_behind"]
    assert worker["modules"] == ["sample_good", "sample_behind"]


def test_a_seed_for_torch_is_still_there_in_workers_and_who_only_draws_is_imported(tmp_path: Path) -> None:
    host, worker = prepared(tmp_path, "seeds_torch", "draws")
    assert host["left_out"] == {}
    assert worker["torch_seed"] == 7


def test_a_worker_makes_its_first_optimizer_without_importing_torch_dynamo(tmp_path: Path) -> None:
    imports = [("torch", list[str]()), (BY_OPTIMIZERS.module, list[str]())]
    host, worker = hosted(tmp_path, imports, OPTIMIZER, 120.0, {})
    assert host["left_out"] == {}, "of this torch it can be imported before a fork"
    assert worker == {"imported": [], "threads": 1}


def test_of_many_that_must_not_be_there_the_last_try_ends_before_the_first(tmp_path: Path) -> None:
    bad = [f"missing{number}" for number in range(MAX_LEFT_OUT + 3)]
    host, worker = prepared(tmp_path, "good", *bad, "behind")
    assert len(host["left_out"]) == MAX_LEFT_OUT
    assert worker["modules"] == ["sample_good"]


def test_an_import_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    began = time.monotonic()
    host, worker = prepared(tmp_path, "good", "slow", limit_s=1.0)
    assert time.monotonic() - began < 60
    assert (host["left_out"], worker["modules"]) == ({}, [])


def test_what_was_left_out_before_is_not_tried_again(tmp_path: Path) -> None:
    host, worker = prepared(tmp_path, "good", "dies", sample_dies="it ended the process")
    assert host["seen"] == ["sample_good"]
    assert worker["modules"] == ["sample_good"]


def test_what_a_launcher_prepares_is_noted_for_its_agent_and_the_next_launcher(tmp_path: Path) -> None:
    notes = Preparation(tmp_path / "run")
    assert (notes.current(), notes.left_out()) == ("", {})
    notes.importing("a" * 1000)
    assert notes.current().startswith("importing aaa")
    assert len(notes.current()) == 100
    notes.ended({"a": "why"})
    assert (notes.current(), notes.left_out()) == ("", {"a": "why"})
    (tmp_path / "run" / "left-out.json").write_text("[1, 2")
    assert notes.left_out() == {}
    for nowhere in (Preparation(None), Preparation("/dev/null/x")):
        nowhere.importing("a")
        nowhere.ended({"a": "why"})
        assert (nowhere.current(), nowhere.left_out()) == ("", {})
