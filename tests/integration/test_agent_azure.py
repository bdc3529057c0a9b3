"""The agent on Azure: its notice from a machine's Scheduled Events."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from email.message import Message
from email.utils import formatdate
from typing import Any

import httpx
import pytest
from spotsup_trainer.agent.azure import AzureReader
from spotsup_trainer.agent.notices import reader_for
from spotsup_trainer.wire import Metadata

from provisioners.base import Instance
from tests.support.programs import LocalCloud
from tests.support.serving import answering

NAME = "/metadata/instance/compute/name"
EVENTS = "/metadata/scheduledevents"


def test_a_notice_is_read_from_a_machines_own_service(local_cloud: LocalCloud, machine: Instance) -> None:
    reader = reader_for(Metadata("azure", machine.metadata_url))
    assert isinstance(reader, AzureReader)
    began = time.monotonic()
    assert reader.read() is None
    assert time.monotonic() - began >= 1.0
    before = time.time()
    assert local_cloud.cli("preempt", machine.id, "--notice", "120").returncode == 0
    deadline = reader.read()
    assert deadline is not None
    assert before + 119 < deadline < time.time() + 121


def test_the_service_is_as_strict_as_azures(machine: Instance) -> None:
    url, header = f"{machine.metadata_url}{EVENTS}", {"Metadata": "true"}
    assert httpx.get(f"{url}?api-version=2020-07-01").status_code == 400
    assert httpx.get(url, headers=header).status_code == 400
    assert httpx.get(f"{url}?api-version=2020-07-01", headers=header).json() == {"DocumentIncarnation": 1, "Events": []}
    name = f"{machine.metadata_url}{NAME}?api-version=2021-02-01&format=text"
    assert httpx.get(name, headers=header).text == machine.id
    assert httpx.get(f"{machine.metadata_url}/metadata/nothing?api-version=1", headers=header).status_code == 404


def test_without_an_address_the_variable_holds(machine: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTSUP_AZURE_METADATA", machine.metadata_url)
    assert AzureReader("").read() is None
    monkeypatch.setenv("SPOTSUP_AZURE_METADATA", "ftp://nowhere")
    with pytest.raises(ValueError, match="should look like"):
        AzureReader("")


def service(
    events: Sequence[dict[str, Any]] | str, *, name: str = "me", status: int = 200
) -> AbstractContextManager[str]:
    """A metadata service with these events."""

    def answer(path: str, headers: Message) -> tuple[int, str]:
        reply = json.dumps({"DocumentIncarnation": 1, "Events": events}) if isinstance(events, list) else str(events)
        return status if headers.get("Metadata") == "true" else 400, name if path.startswith(NAME) else reply

    return answering(answer)


def event(
    kind: str = "Preempt", machine: str = "me", not_before: str = "Sat, 21 Nov 2026 08:02:00 GMT"
) -> dict[str, Any]:
    return {
        "EventId": f"{kind}-1",
        "EventType": kind,
        "Resources": [machine],
        "EventStatus": "Scheduled" if not_before else "Started",
        "NotBefore": not_before,
    }


@pytest.mark.parametrize("kind", ["Preempt", "Terminate"])
def test_a_machine_that_goes_is_a_notice(kind: str) -> None:
    with service([event("Freeze"), event(kind, "ME")]) as url:
        assert AzureReader(url).read() == 1795248120.0


def test_an_event_that_has_started_is_now() -> None:
    with service([event(not_before="")]) as url:
        before = time.time()
        deadline = AzureReader(url).read()
        assert deadline is not None
        assert before - 1 < deadline < time.time() + 1


def test_the_neighbours_events_are_not_ours() -> None:
    with service([event(machine="another-vm", not_before=formatdate(time.time() + 30, usegmt=True))]) as url:
        assert AzureReader(url).read() is None


@pytest.mark.parametrize("kind", ["Freeze", "Reboot", "Redeploy"])
def test_what_leaves_the_machine_is_a_line_in_the_log(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with service([event(kind)]) as url:
        reader = AzureReader(url)
        assert reader.read() is None
        assert reader.read() is None
    assert len([record for record in caplog.records if f"scheduled for this VM: {kind}" in record.message]) == 1


def test_of_events_that_are_over_nothing_is_remembered() -> None:
    events = [event("Freeze"), event("Reboot")]
    with service(events) as url:
        reader = AzureReader(url)
        reader.read()
        assert len(reader._logged) == 2
        events[:] = [event("Redeploy")]
        reader.read()
    assert reader._logged == {"Redeploy-1"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"events": [], "status": 500}, "HTTP 500"),
        ({"events": "<html>"}, "Expecting value"),
        ({"events": [], "name": ""}, "no name"),
        ({"events": [event(not_before="soon")]}, "Invalid date"),
    ],
)
def test_what_is_no_answer_is_an_error_and_no_notice(given: dict[str, Any], says: str) -> None:
    with service(**given) as url, pytest.raises(ValueError, match=says):
        AzureReader(url).read()
