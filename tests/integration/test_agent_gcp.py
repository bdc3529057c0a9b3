"""The agent on Compute Engine: its notice from a machine's metadata service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.message import Message
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from spotsup_trainer.agent import gcp
from spotsup_trainer.agent.gcp import GcpReader
from spotsup_trainer.agent.notices import reader_for
from spotsup_trainer.wire import Metadata

from provisioners.base import Instance
from provisioners.gcp import describe, launch
from tests.support.programs import LocalCloud
from tests.support.serving import answering

PREEMPTED = "/computeMetadata/v1/instance/preempted"
NOTICE = "/computeMetadata/v1/instance/attributes/spotsup-notice-s"
GOOGLE = {"Metadata-Flavor": "Google"}


def test_a_notice_ends_a_wait_at_once(local_cloud: LocalCloud, machine: Instance) -> None:
    reader = reader_for(Metadata("gcp", machine.metadata_url))
    assert isinstance(reader, GcpReader)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.read)
        time.sleep(0.5)  # so that it waits, most probably; the answer is the same where it does not yet
        before = time.time()
        assert local_cloud.cli("preempt", machine.id, "--notice", "120").returncode == 0
        deadline = waiting.result(timeout=gcp._WAIT_S / 2)
        assert deadline is not None
        assert before + 29 < deadline < time.time() + 31


def test_a_notice_from_before_is_seen(local_cloud: LocalCloud, machine: Instance) -> None:
    assert local_cloud.cli("preempt", machine.id, "--notice", "120").returncode == 0
    before = time.time()
    deadline = GcpReader(machine.metadata_url).read()
    assert deadline is not None
    assert before + 29 < deadline < time.time() + 31


def test_a_wait_without_news_ends(machine: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcp, "_WAIT_S", 1)
    began = time.monotonic()
    reader = GcpReader(machine.metadata_url)
    assert reader.read() is None
    assert reader.read() is None
    assert time.monotonic() - began >= 2.0


def test_the_service_wants_its_header(machine: Instance) -> None:
    url = f"{machine.metadata_url}{PREEMPTED}"
    assert httpx.get(url).status_code == 403
    answer = httpx.get(url, headers=GOOGLE)
    assert (answer.text, answer.headers["Metadata-Flavor"]) == ("FALSE", "Google")
    assert httpx.get(f"{url}?wait_for_change=true&last_etag=0", headers=GOOGLE).text == "FALSE"
    assert httpx.get(f"{url}?wait_for_change=true&timeout_sec=x", headers=GOOGLE).status_code == 400
    assert httpx.post(url, headers=GOOGLE).status_code == 405
    assert httpx.get(f"{machine.metadata_url}/computeMetadata/v1/instance/nothing", headers=GOOGLE).status_code == 404
    zone = httpx.get(f"{machine.metadata_url}/computeMetadata/v1/instance/zone", headers=GOOGLE).text
    assert zone.endswith(f"/zones/{machine.zone}")


def test_without_an_address_the_variable_of_googles_libraries_holds(
    machine: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcp, "_WAIT_S", 1)
    monkeypatch.setenv("GCE_METADATA_HOST", machine.metadata_url.removeprefix("http://"))
    assert GcpReader("").read() is None
    with pytest.raises(ValueError, match="should look like"):
        GcpReader("ftp://nowhere")


@contextmanager
def service(answers: dict[str, tuple[int, str]]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A metadata service that answers by path, at once; and what it was asked."""
    asked: list[dict[str, str]] = []

    def answer(path: str, _: Message) -> tuple[int, str]:
        url = urlsplit(path)
        asked.append(dict(parse_qsl(url.query)))
        return answers.get(url.path, (404, ""))

    with answering(answer, headers={"ETag": "7"}) as url:
        yield url, asked


@pytest.mark.parametrize(("item", "notice_s"), [("120", 120), ("0", 0), ("9999", 120), ("soon", 0), (None, 0)])
def test_a_longer_notice_is_written_down_on_the_machine(item: str | None, notice_s: float) -> None:
    answers = {PREEMPTED: (200, "TRUE"), **({NOTICE: (200, item)} if item is not None else {})}
    with service(answers) as (url, _):
        before = time.time()
        deadline = GcpReader(url).read()
        assert deadline is not None
        assert before < deadline - notice_s - 29 < time.time() + 2


def test_a_service_that_does_not_wait_is_not_asked_without_end() -> None:
    with service({PREEMPTED: (200, "FALSE")}) as (url, asked):
        reader = GcpReader(url)
        began = time.monotonic()
        assert reader.read() is None
        assert time.monotonic() - began >= 1.0
        assert asked == [{}, {"wait_for_change": "true", "timeout_sec": "20", "last_etag": "7"}]


@pytest.mark.parametrize(
    ("answer", "says"), [((404, ""), "HTTP 404"), ((503, "busy"), "HTTP 503"), ((200, "<html>"), "<html>")]
)
def test_what_is_no_answer_is_an_error_and_no_notice(answer: tuple[int, str], says: str) -> None:
    with service({PREEMPTED: answer}) as (url, _), pytest.raises(ValueError, match=says):
        GcpReader(url).read()


def test_the_agent_and_the_provisioner_mean_the_same() -> None:
    assert gcp.NOTICE_ITEM == launch.NOTICE_ITEM
    assert gcp.SHUTDOWN_S == describe.SHUTDOWN_S
