"""docs/contributing/add-a-cloud.md adds a fifth cloud: its blocks, in a copy of the source, keep the contract."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import Block, block, blocks
from tests.support.programs import program_env
from tools.stack import ROOT

pytestmark = pytest.mark.long

PAGE = ROOT / "docs" / "contributing" / "add-a-cloud.md"
HELPERS = ("contract", "clouds", "support")
ROOMS = ("supervisor", "provisioners", "bootstrap", "client", "trainer", "simulator", "systemd")
COPIED = (*ROOMS, *(f"tests/{name}" for name in HELPERS))
FILES = ("pyproject.toml", "tests/conftest.py", "tests/unit/test_cloud_names.py", "tests/unit/test_codes.py")
# Of the contract and of the test that counts names; the long run leaves nothing out.
CORE = (
    "offers or login or same_token_means_the_same or no_capacity or lost_answer or announced or names or row or remedy"
)


def apply(found: Block, clone: Path) -> None:
    """A diff changes a file of the copy, TOML is added to one, everything else is a new file."""
    path = clone / found.file
    if found.language == "diff":
        text = path.read_text()
        for hunk in found.text.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if line[0] in " -")
            assert text.count(old) == 1, f"{found.file}: {old!r}"
            text = text.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
        path.write_text(text)
        return
    assert path.exists() is (found.language == "toml"), found.file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(found.text)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the source with Acme in it."""
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for each in blocks(PAGE):
        if each.file:
            apply(each, tmp_path)
    return tmp_path


def python(clone: Path, *arguments: str) -> str:
    """What an interpreter prints that finds the copy before the original."""
    places = [str(place) for place in (clone, clone / "trainer", clone / "client", clone / "simulator")]
    environ = {**program_env(), "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=clone, env=environ, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "which", [pytest.param(CORE, id="core"), pytest.param("", id="whole", marks=pytest.mark.nightly)]
)
@pytest.mark.timeout(600)
def test_the_page_adds_a_cloud_that_keeps_the_contract(clone: Path, which: str) -> None:
    suite = ["tests/contract", "tests/unit/test_cloud_names.py", "tests/unit/test_codes.py"]
    chosen = f"(acme or listed) and ({which})" if which else "acme or listed"
    found = python(clone, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *suite, "-k", chosen)
    assert " passed" in found


def test_the_daemon_and_the_agent_know_the_new_cloud(clone: Path) -> None:
    """The page's table of the configuration, a job file and a node's metadata are accepted."""
    (table,) = (each for each in blocks(PAGE, "toml") if not each.file)
    (clone / "spotsupd.toml").write_text(table.text)
    code = """
from pathlib import Path
from spotsup_trainer.agent.notices import reader_for
from spotsup_trainer.wire import Metadata
from supervisor.clouds import open_cloud
from supervisor.config import load_config
from supervisor.spec import parse_spec

config = load_config(Path("spotsupd.toml"))
spec = parse_spec({"name": "job", "nodes": 1, "run": "train.py", "placement": {"cloud": "acme"}})
print(open_cloud(config, spec.placement.cloud).name, type(reader_for(Metadata("acme", "http://127.0.0.1:80"))).__name__)
"""
    assert python(clone, "-c", code).split() == ["acme", "AcmeReader"]


def test_every_block_of_the_page_is_used() -> None:
    unnamed = [each.language for each in blocks(PAGE) if not each.file]
    assert unnamed == ["toml", "sh"]
    assert block(PAGE, "provisioners/registry.py").language == "diff"
