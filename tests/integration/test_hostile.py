"""Hostile requests and inputs, each against a daemon over real sockets: none gets what it wants, none stops the
daemon. docs/security.md has the same table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.api import serving
from tests.integration.hostile_inputs import INPUTS
from tests.integration.hostile_requests import REQUESTS
from tests.support.hostile import Site, a_site

pytestmark = pytest.mark.long

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/security.md"
ROWS = {**REQUESTS.rows, **INPUTS.rows}
PATIENCE_S = 2.0  # in place of 10 s


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "HEAD_S", PATIENCE_S)
        with a_site(tmp_path_factory.mktemp("site")) as made:
            yield made


@pytest.mark.parametrize("attempt", ROWS, ids=list(ROWS))
def test_it_is_refused(running: Site, attempt: str) -> None:
    tried, _ = ROWS[attempt]
    tried(running)
    assert running.is_well()


def test_the_document_has_these_rows_and_no_other() -> None:
    section = DOCUMENT.read_text().partition("### Tried over real sockets")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)[1:]
    assert [f"| {attempt} | {answer} |" for attempt, (_, answer) in ROWS.items()] == [
        f"| {attempt} | {answer} |" for attempt, answer in rows
    ]
    assert len(ROWS) == 42
