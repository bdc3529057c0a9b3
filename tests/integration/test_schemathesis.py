"""Schemathesis against every route of the API over HTTPS, but the stream: `make fuzz-api` does more of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.api import READERS, an_api, try_as

EXAMPLES = 3  # of each route, beside about thirty for the rules that the document has for it


@pytest.mark.nightly
@pytest.mark.timeout(900)  # ten seconds of CPU time, of a computer that may have other things to do
@pytest.mark.parametrize("reader", READERS, ids=["admin", "submitter", "viewer", "without a token"])
def test_no_answer_is_a_fault_of_the_daemon_or_not_what_the_document_says(tmp_path: Path, reader: str) -> None:
    with an_api(tmp_path) as (https, document):
        tried = try_as(reader, https, document, tmp_path, EXAMPLES, seed=1)
    assert tried.findings == ""
    assert tried.routes == sum(len(methods) for methods in document["paths"].values())
    assert tried.cases > 1000
