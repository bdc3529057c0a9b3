"""docs/remote.md: its commands are run from the first to the last, by an admin on the host and by a user elsewhere."""

from __future__ import annotations

import re
import shlex
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import Keys

from supervisor.cli import ctl, daemon
from supervisor.config import parse_config
from supervisor.journal.journal import Journal
from supervisor.journal.store import EtcdStore
from tests.support.documents import Block, blocks
from tests.support.etcd_server import etcd_server
from tests.support.https import Https
from tools.stack import ROOT

# httpcore leaves it to the garbage collection to close a Unix socket to which it could not connect.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning"),
    pytest.mark.usefixtures("collected_garbage"),
]
DOCUMENT = ROOT / "docs" / "remote.md"


def lines(heading: str, language: str) -> list[str]:
    found: list[Block] = [each for each in blocks(DOCUMENT) if each.heading == heading and each.language == language]
    return [line for block in found for line in block.text.splitlines()]


def test_its_commands_do_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nothing"))
    text = "\n".join(lines("Let users in", "toml"))
    parse_config(tomllib.loads(text), "the document")
    with (
        etcd_server(tmp_path / "etcd") as server,
        closing(Etcd([server.endpoint])) as etcd,
        Https.started(tmp_path / "state") as https,
    ):
        journal = Journal(EtcdStore(etcd, "/none/"), Keys("default"))
        config = f'state_dir = "{https.config.state}"\n[etcd]\nendpoints = ["{server.endpoint}"]\n{text}\n'
        (tmp_path / "spotsupd.toml").write_text(config)

        def admin(line: str) -> str:
            done = CliRunner().invoke(
                daemon.main, [*shlex.split(line)[1:], "--config", str(tmp_path / "spotsupd.toml")]
            )
            assert done.exit_code == 0, f"{line}: {done.output}"
            https.tokens = journal.tokens()
            return done.stdout.strip()

        add, show, revoke = lines("Let users in", "sh")
        token = admin(add)
        assert admin(show).startswith("ann  submitter")

        def user(line: str, expected: int = 0) -> str:
            # The document's daemon is this one.
            line = re.sub(
                r"https://\S+", f"https://127.0.0.1:{https.port} --name spot.example.org --token-file -", line
            )
            line = re.sub(r"SHA256:\S+", https.fingerprint, line)
            done = CliRunner().invoke(ctl.main, shlex.split(line)[1:], input=token)
            assert done.exit_code == expected, f"{line}: {done.output}"
            return done.stdout

        login, jobs, contexts, local, switch, logout = lines("Log in", "sh")
        assert "ann, submitter" in user(login)
        user(jobs)
        assert "* spot.example.org" in user(contexts)
        user(local, expected=3)  # no daemon runs here
        user(switch)
        admin(revoke)
        user(jobs, expected=5)
        assert user(logout) == "forgot spot.example.org\n"
