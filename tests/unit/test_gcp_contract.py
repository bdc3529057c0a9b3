"""Requests and answers of the test cloud against Google's discovery documents: what each kind of fault is called."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.clouds.covered import note_call, note_member, table, write
from tests.clouds.gcp_wire import Call, FakeGcpError, against, read_call

INSTANCES = "/compute/v1/projects/p/zones/us-central1-a/instances"


def asked(body: Any, path: str = INSTANCES, query: str = "") -> Call:
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": path, "QUERY_STRING": query}
    return read_call(environ, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("body", "path", "query", "complaint"),
    [
        ({"nam": "x"}, INSTANCES, "", "Unknown name \"nam\" at 'resource': Cannot find field."),
        (
            {"scheduling": {"provisioningModel": "CHEAP"}},
            INSTANCES,
            "",
            "provisioningModel': 'CHEAP'",
        ),
        ({"status": "RUNNING"}, INSTANCES, "", "resource.status is output only"),
        ({"name": 1}, INSTANCES, "", "resource.name: 1 is not of type string"),
        ({}, INSTANCES, "colour=1", "Unknown parameter 'colour' of instances.insert"),
        ({}, f"{INSTANCES}/x/fly", "", "was not found on this server"),
    ],
)
def test_a_request_that_google_does_not_describe(body: Any, path: str, query: str, complaint: str) -> None:
    with pytest.raises(FakeGcpError, match=re.escape(complaint)):
        asked(body, path, query)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"status": "DONE", "kind": "compute#operation"}, ""),
        ({"stat": "DONE"}, "instances.insert of compute's discovery document: Unknown name \"stat\" at 'answer'"),
        ({"status": "OVER"}, "Invalid value at 'answer.status': 'OVER'"),
        ({"id": 7}, "answer.id: 7 is not of type string"),
        ({"id": "seven"}, "answer.id: 'seven' is no number"),
        ([], "answer: not an object"),
    ],
)
def test_an_answer_that_google_does_not_describe(body: Any, complaint: str) -> None:
    found = list(against(asked({}), body))
    assert bool(found) is bool(complaint)
    assert not found or complaint in found[0]


def test_what_was_met_is_counted_over_all_processes(tmp_path: Any) -> None:
    note_call("a description", "request", "fly")
    note_call("a description", "answer", "fly")
    note_member("a description", "answer", "Bird.wings")
    write(tmp_path)
    (tmp_path / "other.json").write_text((next(tmp_path.glob("*.json"))).read_text())
    assert "| a description | 1 | 2 | 0 | 2 | 1 |" in table(tmp_path)
