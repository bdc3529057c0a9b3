"""What the documents say is true: blocks of code are taken, and names in them are those of the code."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import spotsup
import spotsup_simulator
import spotsup_trainer
import yaml

from supervisor.cli.ctl import main as spotsupctl
from supervisor.cli.daemon import main as spotsupd
from supervisor.config import parse_config
from supervisor.installation.layout import UNITS
from supervisor.model import JobState, NodeState
from supervisor.spec import parse_spec
from tests.support.documents import Block, blocks
from tests.unit.test_systemd import service
from tools import states, tables
from tools.stack import ROOT

README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
DOCS = ROOT / "docs"
QUICKSTART, INSTALL, GLOSSARY, ALERTS = (
    DOCS / f"{name}.md" for name in ("quickstart", "install", "glossary", "alerts")
)
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "trainer").rglob("*.md"), ROOT / "simulator" / "README.md"]
)

# Documents of whose blocks of code each is tried, or listed below.
TRIED = (README, CONTRIBUTING, QUICKSTART, INSTALL, ALERTS)
# Documents whose shell blocks are run from the first to the last by tests/e2e/test_documents.py.
RUN_WHOLE = (QUICKSTART,)
# Of these documents, the headings below which that is so.
RUN_PARTS = {INSTALL: ("On one computer",)}
# Commands that no test runs as they stand: what they begin with, and why.
NOT_RUN = {
    README: {"make demo": "tests/e2e/test_demo.py runs it", "make test": "this is it"},
    CONTRIBUTING: {
        "make setup": "every test stands on it",
        "make demo": "tests/e2e/test_demo.py runs it",
        "make test-fast": "this is it",
        "make check": "CI runs it",
    },
    INSTALL: {
        "sudo -E": "needs an account: tests/integration/test_init_account.py runs `init --account` and `destroy`",
        "sudo": "needs root on a host of its own, and changes it: tests/acceptance runs them there",
        "aws ": "needs an account: tests/integration/test_init_account.py compares it with what `init` prints",
        "gcloud": "needs an account: likewise",
        "az ": "needs an account: likewise",
        "echo AZURE_CLIENT_ID": "likewise",
        "spotsup": "tests/e2e/test_install_clouds.py runs it",
        "until spotsupctl": "tests/e2e/test_install_clouds.py runs it",
        "tar ": "tests/e2e/test_install_clouds.py: etcd is there",
        "curl": "needs etcd's page",
        "ssh 10.0.0.": "needs two hosts: tests/e2e/test_several_daemons.py runs it on such",
        "uv tool install": "needs a package index; tests/integration/test_distributions.py installs the wheels",
        "pipx install": "needs a package index",
    },
    ALERTS: {"spotsupd alert test": "sends to channels: tests/integration/test_alerts.py runs it against its own"},
}


def commands(block: Block) -> list[str]:
    return [re.sub(r"\s+#.*$", "", line) for line in block.text.splitlines() if line.strip()]


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def leaves(name: str, group: click.Group) -> Iterator[str]:
    context = click.Context(group)
    for key, command in ((key, group.get_command(context, key)) for key in group.list_commands(context)):
        if isinstance(command, click.Group):
            yield from leaves(f"{name} {key}", command)
        else:
            yield f"{name} {key}"


COMMANDS = {*leaves("spotsupctl", spotsupctl), *leaves("spotsupd", spotsupd)}

# -- blocks of code ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", TRIED, ids=lambda path: path.name)
def test_every_block_of_code_is_tried_or_listed_with_a_reason(document: Path) -> None:
    used = set()
    for block in blocks(document):
        where = f"{document.name}:{block.line}"
        run = document in RUN_WHOLE or block.heading in RUN_PARTS.get(document, ())
        if block.language == "sh" and not run:
            for line in commands(block):
                begin = next((begin for begin in NOT_RUN[document] if line.startswith(begin)), None)
                assert begin, f"{where}: no test runs {line!r}, and no reason is given"
                used.add(begin)
        elif block.language == "python":
            tried = block.file or document == ALERTS  # tests/integration/test_alerts.py runs its code
            assert tried, f"{where}: give the script a name, so that tests/e2e/test_documents.py runs it"
        elif block.language == "yaml":
            spec = parse_spec(yaml.safe_load(block.text))
            assert (ROOT / spec.code / spec.command[0]).is_file()
        elif block.language == "toml":
            parse_config(tomllib.loads(block.text), where)
        else:
            assert block.language in ("sh", ""), f"{where}: nothing tries a block of {block.language}"
    assert used == set(NOT_RUN.get(document, {}))


def test_a_block_without_a_language_is_output_or_a_picture() -> None:
    for document in TRIED:
        for block in blocks(document, ""):
            assert not re.search(r"^(\$ |make |spotsup|sudo |python |pip )", block.text, re.MULTILINE), block


def test_the_installation_follows_the_units() -> None:
    text = INSTALL.read_text()
    removed = text[text.index("## Remove") :]
    for unit in UNITS:
        assert f"/etc/systemd/system/{unit}" in removed
    for unit in ("spotsupd.service", "spotsup-etcd.service"):
        assert service(unit)["User"] == "spotsup"
        assert f"`/{service(unit)['EnvironmentFile'].lstrip('-/')}`" in text
    assert {"/opt/spotsup", "/etc/spotsup/spotsupd.toml"} <= set(re.findall(r"/[\w./-]+[\w]", text))


# -- the sequences of docs/install.md ------------------------------------------------------------------------

SEQUENCES = (
    "On AWS",
    "On Google Cloud",
    "On Azure",
    "From a laptop",
    "On another cloud",
    "On one computer",
    "Several daemons",
)
MAX_COMMANDS = 10
# What else runs commands: its options are not ours, and end before the program.
WRAPPERS = {"sudo", "until", "systemd-run", "env"}
PROGRAMS = {"spotsupd": spotsupd, "spotsupctl": spotsupctl}
OTHERS = {
    "apt-get",
    "pipx",
    "curl",
    "tar",
    "systemctl",
    "aws",
    "gcloud",
    "az",
    "echo",
    "kill",
    "ssh",
    "spotsup-localcloud",
}


def sequence(heading: str) -> list[str]:
    return [line for block in blocks(INSTALL, "sh") if block.heading == heading for line in block.commands()]


def program_of(command: str) -> tuple[str, list[str]]:
    """The program that a command runs, and its arguments."""
    words = shlex.split(command.replace(";", " ;").replace("$'", "'"))
    at = next(n for n, word in enumerate(words) if word in {*PROGRAMS, *OTHERS})
    before = [word for word in words[:at] if not word.startswith("-") and "=" not in word]
    assert {*before} <= {*WRAPPERS, "spotsup"}, command
    return words[at], words[at + 1 :]


@pytest.mark.parametrize("heading", SEQUENCES)
def test_a_first_trained_step_takes_ten_commands_at_most_and_each_exists(heading: str) -> None:
    found = [program_of(command) for command in sequence(heading)]
    assert 0 < len(found) <= MAX_COMMANDS
    for program, arguments in found:
        if program in PROGRAMS:
            problem = unknown_option(PROGRAMS[program], arguments)
            assert not problem, f"{heading}: {program} {' '.join(arguments)}: {problem}"


@pytest.mark.parametrize("heading", SEQUENCES[:4])
def test_a_sequence_installs_a_closed_etcd_before_the_installation_and_checks_before_it_submits(heading: str) -> None:
    joined = "\n".join(sequence(heading))
    places = [joined.index(each) for each in ("etcd-v3.5.33", "spotsupd init", "spotsupd check", "spotsupctl submit")]
    assert places == sorted(places)
    assert " --account " in joined
    assert " --follow " in joined
    assert "etcd-server" not in joined


def unknown_option(group: click.Group, arguments: list[str]) -> str:
    """The first word that the command line does not know; "" where all is known."""
    command: click.Command = group
    for word in arguments:
        if word in {"--", ";", "|", "&"} or word.startswith(">"):
            return ""
        if isinstance(command, click.Group) and not word.startswith("-"):
            below = command.get_command(click.Context(command), word)
            if below is None:
                return f"there is no {word}"
            command = below
        elif word.startswith("-"):
            known = {name for each in command.params if isinstance(each, click.Option) for name in each.opts}
            if word not in known:
                return f"there is no {word}"
    return ""


def test_a_word_that_a_command_line_does_not_know_is_found() -> None:
    assert unknown_option(spotsupd, ["init", "--acount"]) == "there is no --acount"
    assert unknown_option(spotsupd, ["innit"]) == "there is no innit"
    assert unknown_option(spotsupctl, ["submit", "--name", "first", "--", "--acount"]) == ""


# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", document.read_text()):
        there = document.parent / target if target else document
        assert there.exists(), f"{document.name} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{document.name} links to {target}#{anchor}"


def anchors(document: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_make_targets_that_documents_name_exist() -> None:
    targets = makefile_targets()
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z-]+)", document.read_text()))
        assert named <= targets, f"{document.name} names {named - targets}"


def test_commands_that_documents_name_exist() -> None:
    """Decisions say what was: they are superseded, and not rewritten."""
    groups = {command.rpartition(" ")[0] for command in COMMANDS}
    for document in (each for each in DOCUMENTS if each.parent.name != "decisions"):
        for name, words in re.findall(
            r"(?:`|^ *)(spotsupctl|spotsupd) ([a-z][a-z-]*(?: [a-z]+)?)", document.read_text()
        ):
            first = f"{name} {words.partition(' ')[0]}"
            assert first in COMMANDS | groups, f"{document.name} names {first}"
            assert first in COMMANDS or f"{name} {words}" in COMMANDS or " " not in words, f"{name} {words}"


def test_files_that_documents_name_exist() -> None:
    rooms = "supervisor|provisioners|bootstrap|trainer|simulator|systemd|tests|benchmarks|tools|docs"
    for document in DOCUMENTS:
        for name in re.findall(rf"`((?:{rooms})/[\w./-]*)`", document.read_text()):
            assert (ROOT / name).exists(), f"{document.name} names {name}"


def test_every_promise_has_a_test_that_exists() -> None:
    rows = re.findall(r"^\| (P\d+) \|.*\| (.*) \|$", (DOCS / "promises.md").read_text(), re.MULTILINE)
    numbers = [int(name[1:]) for name, _ in rows]
    assert numbers == sorted({*range(1, 11), *numbers})
    for name, holders in rows:
        files = re.findall(r"`([^`]+)`", holders)
        assert files, f"{name} is held by no test"
        for file in files:
            assert (ROOT / file).is_file(), f"{name} is held by {file}, which does not exist"


def test_the_map_leads_to_every_document_and_the_index_to_every_decision() -> None:
    index = {path.name for path in (DOCS / "decisions").glob("0*.md")}
    assert set(re.findall(r"\]\((0[\w-]+\.md)\)", (DOCS / "decisions" / "README.md").read_text())) == index
    found = set(re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "README.md").read_text()))
    folders = ("", "contributing", "reference", "training", "verification")
    expected = {path for name in folders for path in (DOCS / name).glob("*.md")} - {DOCS / "README.md"}
    assert found >= {str(path.relative_to(DOCS)) for path in expected}


# -- the glossary and the architecture -----------------------------------------------------------------------


def glossary(section: str) -> list[str]:
    """The first column of one table."""
    text = GLOSSARY.read_text().split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `?([^`|]+?)`?(?: \*)? \|", text, re.MULTILINE)[1:]


def test_the_glossary_has_the_states_of_the_code() -> None:
    assert glossary("Node states") == [str(state) for state in NodeState]
    assert glossary("Job states") == [str(state) for state in JobState]
    assert glossary("Terms") == sorted(set(glossary("Terms")))


def test_a_term_of_the_glossary_has_one_meaning_of_a_line() -> None:
    meanings = re.findall(
        r"^\| [\w -]+ \| ([^|]+) \|$", GLOSSARY.read_text().partition("\n## Parts of")[0], re.MULTILINE
    )
    assert len(meanings) == len(glossary("Terms")) + 1
    assert [each for each in meanings if len(each.split()) > 20] == []


@pytest.mark.parametrize(("document", "text"), tables.written().items(), ids=lambda each: getattr(each, "name", ""))
def test_the_tables_of_events_and_metrics_are_what_the_code_says(document: Path, text: str) -> None:
    assert document.read_text() == text, f"run `make docs` and commit {document.name}"


def test_the_state_diagrams_are_those_of_the_tables() -> None:
    text = states.DOCUMENT.read_text()
    assert text == states.updated(text), "run `make docs` and commit docs/contributing/architecture.md"


# -- the project ---------------------------------------------------------------------------------------------


def test_the_version_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    trainer = tomllib.loads((ROOT / "trainer" / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert "version" in trainer["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == f"trainer/{trainer['tool']['hatch']['version']['path']}"
    extras = project["project"]["optional-dependencies"]
    wanted = (*project["project"]["dependencies"], *extras["daemon"], *extras["simulator"])
    pins = [each for each in wanted if each.startswith("spotsup-")]
    assert pins == [f"spotsup-{name}=={spotsup_trainer.__version__}" for name in ("client", "trainer", "simulator")]
    simulator = tomllib.loads((ROOT / "simulator" / "pyproject.toml").read_text())
    assert simulator["project"]["dependencies"] == [f"spotsup[daemon]=={spotsup_trainer.__version__}"]
    assert spotsup_simulator.__version__ == spotsup.__version__ == spotsup_trainer.__version__


def test_the_commit_hooks_are_the_checks_of_make_check() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    recipe = re.search(r"^check: setup\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    lines = [line.strip().lstrip("@").replace("$(python)", ".venv/bin/python") for line in recipe[1].splitlines()]
    assert [hook["entry"] for hook in hooks] == lines
