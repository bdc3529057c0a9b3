"""What the documents say is true: job files parse, commands exist, promises name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from supervisor.cli.ctl import main as ctl
from supervisor.cli.daemon import main as daemon
from supervisor.spec import parse_spec
from tools.stack import ROOT

README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "trainer").rglob("*.md")])


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("text", blocks(README, "yaml"))
def test_the_job_files_of_the_readme_are_taken(text: str) -> None:
    spec = parse_spec(yaml.safe_load(text))
    assert (ROOT / spec.code / spec.command[0]).is_file()


def test_the_commands_of_the_readme_exist() -> None:
    used = set(re.findall(r"^ +spotsupctl ([\w-]+)", README, re.MULTILINE))
    assert used >= {"submit", "status", "scale", "logs", "cancel"}
    assert used <= set(ctl.commands)
    assert "run" in daemon.commands


def test_every_promise_has_a_test_that_exists() -> None:
    rows = re.findall(r"^\| (P\d+) \|.*\| (.*) \|$", (ROOT / "docs" / "promises.md").read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == [f"P{number}" for number in range(1, 11)]
    for name, holders in rows:
        files = re.findall(r"`([^`]+)`", holders)
        assert files, f"{name} is held by no test"
        for file in files:
            assert (ROOT / file).is_file(), f"{name} is held by {file}, which does not exist"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_make_targets_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z-]+)", document.read_text()))
        assert named <= targets, f"{document.name} names {named - targets}"
