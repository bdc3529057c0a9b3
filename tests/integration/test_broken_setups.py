"""What a tired person gets wrong while installing, through the real program: each ends in the one sentence of
tools/broken_setups, which is also docs/reference/broken-setups.md.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from unittest.mock import patch

import pytest
import structlog
from click.testing import CliRunner

from supervisor.cli.daemon import main
from tests.integration import breaks_around, breaks_of_clouds, breaks_of_host, breaks_of_own  # noqa: F401 - they break the rows
from tests.support.broken_setups import AWS, AZURE, BREAKS, GCP, Etcds, Setup, bucket, closed_port, page, toml
from tests.support.secured_etcd import DAEMON, PHRASE, SecuredEtcd, secured_etcd
from tools.broken_setups import CLOUDS, ROWS, BrokenSetup

CHECK_TIMEOUT_S = 240.0
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def worker_secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredEtcd]:
    with secured_etcd(tmp_path_factory.mktemp("secured")) as made:
        with closing(made.client()) as etcd:
            etcd.call("/v3/auth/user/add", {"name": "weak", "password": "weak"})
        yield made


@pytest.fixture
def setup(
    tmp_path: Path, etcd_endpoint: str, worker_secured: SecuredEtcd, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Setup]:
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ))  # what rows and servers change ends with them
        os.environ.pop("SPOTSUP_SLACK_WEBHOOK", None)
        stack.callback(structlog.reset_defaults)  # `run` sets up the log of this process
        made = Setup(tmp_path, stack, Etcds(etcd_endpoint, worker_secured), monkeypatch)
        made.config["state_dir"] = str(made.state)
        made.values |= {"folder": str(tmp_path), "python": sys.executable}
        yield made


def said_by(setup: Setup, program: str) -> list[tuple[str, str]]:
    """(check, sentence) of all that is wrong; the check is "" where the program ended before any."""
    if setup.said:
        return [("", setup.said.partition(": ")[2])]
    if setup.text != "-":
        setup.file.write_text(setup.text or toml(setup.config))
    command = program.split()[1]
    arguments = [command, "--config", str(setup.file), *(["--embedded-etcd"] if setup.embedded else [])]
    more = ["--timeout", str(CHECK_TIMEOUT_S), "-o", "json", *setup.arguments]
    arguments += more if command == "check" else []
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    if done.stderr:
        assert (done.exit_code in {1, 2}, done.stdout) == (True, "")
        (line,) = done.stderr.splitlines()
        return [("", line.removeprefix("spotsupd: "))]
    report = json.loads(done.stdout)
    assert done.exit_code == (0 if report["ok"] else 1)
    return [(f"{each['subject']}, {each['check']}", each["message"]) for each in report["findings"] if not each["ok"]]


def pattern_of(says: str, values: Mapping[str, str]) -> str:
    """A regular expression: `{name}` stands for a value, `…` for any text without a line break."""
    parts = re.split(r"(…|\{\w+\})", says)
    return "".join(
        ".+" if part == "…" else re.escape(values[part[1:-1]] if part[:1] == "{" else part) for part in parts
    )


# An SDK's answers take seconds.
PARAMETERS = [pytest.param(row, id=row.id, marks=[pytest.mark.long] if row.group == CLOUDS else []) for row in ROWS]


@pytest.mark.parametrize("row", PARAMETERS)
def test_a_broken_setup_is_named_by_one_sentence_that_says_what_to_do(row: BrokenSetup, setup: Setup) -> None:
    BREAKS[row.id](setup)
    found = said_by(setup, row.program)
    assert {check for check, _ in found} == {row.check, *row.also}, found
    message = next(message for check, message in found if check == row.check)
    assert re.fullmatch(pattern_of(row.says, setup.values), message), message
    assert len(message) < 700


@pytest.mark.parametrize("cloud", ["", *(pytest.param(each, marks=pytest.mark.long) for each in (AWS, GCP, AZURE))])
def test_what_the_rows_break_passes_all_checks_before(cloud: str, setup: Setup) -> None:
    """So each sentence is of what its row breaks."""
    setup.key()
    if cloud:
        setup.cloud(cloud)
    setup.etcd(
        **setup.etcds.login(user=DAEMON, password_file=setup.write("password", PHRASE)),
    )
    bucket(setup)
    os.environ["SPOTSUP_SLACK_WEBHOOK"] = page(setup, 400)
    setup.write("environment", "", 0o640)
    said = said_by(setup, "spotsupd check")
    assert [each for each in said if each[0] != "etcd, users"] == []  # it depends on the version of etcd that is here


@pytest.mark.parametrize("why", ["no credentials", "no obstore", "no address"])
def test_where_this_computer_cannot_try_a_bucket_only_the_nodes_role_decides(why: str, setup: Setup) -> None:
    server = bucket(setup, "none" if why == "no address" else "s3://a-bucket/jobs")
    if why == "no obstore":
        setup.monkeypatch.setitem(sys.modules, "obstore", None)
    for name in server.environ:
        del os.environ[name]
    os.environ["AWS_REGION"] = "us-east-1"
    os.environ["AWS_METADATA_ENDPOINT"] = f"http://127.0.0.1:{closed_port(setup)}"
    setup.file.write_text(toml(setup.config))
    arguments = ["check", "--config", str(setup.file), "--embedded-etcd", *setup.arguments]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    (line,) = [line for line in done.stdout.splitlines() if " job, checkpoints: " in line]
    decides = "only the nodes' role decides; each node tries it before it trains"
    missing = "obstore is not installed here: pip install obstore"
    says = {
        "no credentials": f"s3://a-bucket/jobs was not tried, for this computer has no credentials for it: {decides}",
        "no obstore": f"s3://a-bucket/jobs was not tried ({missing}): {decides}",
        "no address": "job first keeps its checkpoints in no object store: there is nothing to try from here",
    }
    assert line == f"ok      job, checkpoints: {says[why]}"
    assert not server.requests[1:], "after the making of its bucket"


def test_every_row_is_broken_and_there_are_forty() -> None:
    assert {row.id for row in ROWS} == BREAKS.keys()
    assert len(ROWS) >= 40
