"""What answers is not etcd, or sends what etcd does not: for every caller that is an etcd that does not answer."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from spotsup_trainer.etcd import Compare, Etcd, EtcdRefusedError, EtcdUnavailableError, Put
from spotsup_trainer.etcd.mirror import Mirror, MirrorView
from spotsup_trainer.etcd.outbox import Outbox

from supervisor.runtime.leader import Leadership
from tests.support.etcd_server import Cable, cable
from tests.support.serving import answering

WAIT_S = 20.0
PHRASE = "open sesame"
PAGE = b"<html><title>Please log in</title></html>"
HEADER = b'"header": {"cluster_id": "1", "revision": "7"}'
NONSENSE = {
    "a page": PAGE,
    "nothing": b"",
    "a list": b"[]",
    "an empty object": b"{}",
    "another API": b'{"message": "Not Found", "header": null}',
    "not UTF-8": b'\xff\xfe{"a": 1}',
    "deep": b"[" * 200_000,
    "a cut": b"{" + HEADER,
    "a revision that is none": b'{"header": {"cluster_id": "1", "revision": 1e999}, "result": {"created": true}}',
}
BROKEN_KEYS = (b'"kvs": "many"', b'"kvs": [{}]', b'"kvs": [5]', b'"kvs": [{"key": null}]')


def _log_in(endpoints: Sequence[str]) -> None:
    with closing(Etcd(endpoints, user="me", password=PHRASE)) as etcd:
        etcd.get("/a")


CALLS: dict[str, Callable[[Etcd], Any]] = {
    "get": lambda etcd: etcd.get("/a"),
    "put": lambda etcd: etcd.put("/a", b"1"),
    "delete": lambda etcd: etcd.delete("/a"),
    "txn": lambda etcd: etcd.txn([Compare("/a", "mod", 0)], [Put("/a", b"1")]),
    "grant": lambda etcd: etcd.grant(5),
    "keepalive": lambda etcd: etcd.keepalive(1),
    "revoke": lambda etcd: etcd.revoke(1),
    "status": lambda etcd: etcd.status(),
    "watch": lambda etcd: etcd.watch("/a"),
    "login": lambda etcd: _log_in(etcd.endpoints),
}


@pytest.fixture
def wire(etcd_endpoint: str) -> Iterator[Cable]:
    with cable(etcd_endpoint) as made:
        yield made


def until(predicate: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not predicate():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_answer_of_etcd_is_an_etcd_that_does_not_answer(wire: Cable, name: str) -> None:
    with closing(Etcd([wire.endpoint])) as etcd:
        for status in ("200 OK", "302 Found", "403 Forbidden", "404 Not Found", "502 Bad Gateway"):
            for body in NONSENSE.values():
                wire.babble(body, status)
                with pytest.raises(EtcdUnavailableError, match=r"no answer of etcd|etcd closed the connection"):
                    CALLS[name](etcd)
        wire.repair()
        assert etcd.get("/a") is None


def test_keys_in_another_form_are_no_answer_of_etcd(wire: Cable) -> None:
    with closing(Etcd([wire.endpoint])) as etcd:
        for kvs in BROKEN_KEYS:
            wire.babble(b"{" + HEADER + b"," + kvs + b"}")
            with pytest.raises(EtcdUnavailableError, match="JSON of another form"):
                etcd.range("/a")
        # on a watch that has begun well
        begun = b'{"result": {' + HEADER + b', "created": true}}\n'
        for line in (PAGE, b'{"result": {' + HEADER + b', "events": [{"kv": 5}]}}', b"[" * 100_000):
            wire.babble(begun + line + b"\n")
            with pytest.raises(EtcdUnavailableError, match="no answer of etcd"):
                list(etcd.watch("/a"))


def test_an_answer_that_is_too_large_is_not_kept(wire: Cable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotsup_trainer.etcd.gateway.MAX_ANSWER_BYTES", 100_000)
    with closing(Etcd([wire.endpoint])) as etcd:
        wire.babble(b"{" + HEADER + b"}" + b" " * 100_000)
        with pytest.raises(EtcdUnavailableError, match="more than 100000 bytes"):
            etcd.get("/a")
        wire.babble(b"{" + HEADER + b"}" + b" " * 90_000)
        assert etcd.get("/a") is None


def test_another_endpoint_is_asked(wire: Cable, etcd_endpoint: str) -> None:
    wire.babble(PAGE)
    with closing(Etcd([wire.endpoint, etcd_endpoint])) as etcd:
        etcd.put("/a", b"1")
        with closing(etcd.watch("/a")) as watch:
            assert watch.endpoint == etcd_endpoint


def test_another_endpoint_is_asked_where_one_knows_no_leader(wire: Cable, etcd_endpoint: str) -> None:
    no_leader = b'{"error": "etcdserver: no leader", "message": "etcdserver: no leader", "code": 14}'
    wire.babble(no_leader, "503 Service Unavailable")
    with closing(Etcd([wire.endpoint, etcd_endpoint])) as etcd:
        etcd.put("/a", b"1")
    with closing(Etcd([wire.endpoint, etcd_endpoint])) as etcd, closing(etcd.watch("/a")) as watch:
        assert watch.endpoint == etcd_endpoint
    with closing(Etcd([wire.endpoint])) as etcd, pytest.raises(EtcdUnavailableError, match="no leader"):
        etcd.watch("/a")


def test_a_login_that_meets_no_leader_says_nothing_about_the_user(wire: Cable) -> None:
    wire.babble(b'{"message": "etcdserver: leader changed", "code": 14}', "503 Service Unavailable")
    for call in (CALLS["get"], CALLS["watch"]):
        with (
            closing(Etcd([wire.endpoint], user="me", password=PHRASE)) as etcd,
            pytest.raises(EtcdUnavailableError, match=r"503 etcdserver: leader changed\)$"),
        ):
            call(etcd)
    wire.babble(b'{"message": "etcdserver: authentication failed", "code": 3}', "400 Bad Request")
    with pytest.raises(EtcdRefusedError, match="does not accept user 'me'"):
        _log_in([wire.endpoint])


def test_what_etcd_itself_refuses_is_still_a_refusal(etcd_endpoint: str) -> None:
    with closing(Etcd([etcd_endpoint])) as etcd, pytest.raises(EtcdRefusedError, match="lease not found") as refusal:
        etcd.put("/a", b"1", lease=77)
    assert refusal.value.code == 5


def _value_of(view: MirrorView, key: str) -> bytes | None:
    found = view.keys.get(key)
    return found.value if found else None


def test_mirror_outbox_and_leadership_outlive_a_login_page_in_between(wire: Cable) -> None:
    with closing(Etcd([wire.endpoint], timeout_s=1.0)) as etcd:
        mirror, outbox = Mirror(etcd, "/m/"), Outbox(etcd, ttl_s=5.0)
        leader = Leadership(etcd, "/leader", "me", 2.0)
        for part in (mirror, outbox, leader):
            part.start()
        try:
            until(lambda: leader.leading and mirror.view().live)
            for body in (PAGE, b"{}", b"[" * 100_000):
                wire.babble(body)
                outbox.put("/m/1", body[:10])
                until(lambda: not mirror.view().live and "no answer of etcd" in leader._call_problem)
                wire.repair()
                until(lambda: mirror.view().live and leader.leading and not leader.etcd_problem())
                assert outbox.flush(WAIT_S)
                assert mirror.wait(lambda view: _value_of(view, "/m/1") == body[:10], WAIT_S)  # noqa: B023 - waited for
        finally:
            leader.stop()
            outbox.close()
            mirror.close()


def test_a_key_that_is_not_utf_8_does_no_harm(etcd_endpoint: str) -> None:
    with closing(Etcd([etcd_endpoint])) as etcd:
        mirror = Mirror(etcd, "/m/")
        mirror.start()
        try:
            assert mirror.wait_live(WAIT_S)
            etcd.call("/v3/kv/put", {"key": base64.b64encode(b"/m/\xff\xfe").decode(), "value": "MQ=="})
            etcd.put("/m/next", b"2")
            assert mirror.wait(lambda view: view.live and {*view.keys} == {"/m/\\xff\\xfe", "/m/next"}, WAIT_S)
            assert [kv.key for kv in etcd.range("/m/").kvs] == ["/m/next", "/m/\\xff\\xfe"]
        finally:
            mirror.close()


@pytest.mark.parametrize("words", ["etcdserver: revision of auth store is old", "auth: revision in header is old"])
def test_a_request_is_repeated_when_users_were_changed_meanwhile_in_each_versions_words(words: str) -> None:
    refusal = f'{{"error": "{words}", "code": 2, "message": "{words}"}}'
    answers = [(500, refusal), (500, refusal), (200, '{"header": {"revision": "7"}, "kvs": []}')]
    with answering(lambda _path, _headers: answers.pop(0)) as url, closing(Etcd([url])) as etcd:
        assert etcd.get("/a") is None
    assert not answers
