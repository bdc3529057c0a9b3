"""Machines that one has: hours, names of GPUs, settings, what is believed of a host's answer. No SSH, no process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from provisioners.base import (
    Fatal,
    InstanceState,
    LaunchOutcome,
    LaunchRequest,
    NoCapacity,
    OfferQuery,
    Owner,
    PartialListingError,
    Unknown,
    UnreachableError,
)
from provisioners.calls import NoAnswerError, NotSentError
from provisioners.gpu_names import name_of
from provisioners.own.answers import machine_id
from provisioners.own.gone import COLD_S, GONE_S, gone_hosts
from provisioners.own.hours import available_for, parse_hours
from provisioners.own.login import HostError, SilentError
from provisioners.own.provisioner import CLOSE_NOTICE_S, OwnProvisioner
from provisioners.own.settings import OwnSettings
from supervisor.identity import Identity

SATURDAY, MONDAY = datetime(2026, 11, 28), datetime(2026, 11, 30)  # noqa: DTZ001 - hours are local times
IDENTITY = Identity(bytes(32))
OWNER = IDENTITY.owner("test")
A100 = "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("text", "now", "left"),
    [
        ("", MONDAY, timedelta.max),
        ("00:00-24:00", MONDAY, timedelta.max),
        ("18:00-08:00", MONDAY + timedelta(hours=7, minutes=30), timedelta(minutes=30)),
        ("18:00-08:00", MONDAY + timedelta(hours=8), None),
        ("18:00-08:00", MONDAY + timedelta(hours=23), timedelta(hours=9)),
        ("weekends", MONDAY, None),
        ("weekends", SATURDAY, timedelta(days=2)),
        ("18:00-08:00, weekends", SATURDAY + timedelta(hours=12), timedelta(days=1, hours=20)),
        ("mon-fri 20:00-07:00", SATURDAY + timedelta(hours=6), timedelta(hours=1)),
        ("mon-fri 20:00-07:00", SATURDAY + timedelta(hours=21), None),
        ("sat-mon", MONDAY, timedelta(days=1)),
        ("mon 08:00-10:00, monday 10:00-12:00", MONDAY + timedelta(hours=9), timedelta(hours=3)),
        ("weekends, mon-fri 20:00-07:00", SATURDAY + timedelta(hours=1), timedelta(hours=47)),
    ],
)
def test_hours_say_for_how_long_a_host_may_be_used(text: str, now: datetime, left: timedelta | None) -> None:
    assert available_for(parse_hours(text), now) == left


@pytest.mark.parametrize(
    "text",
    ["18:00", "nightly", "18-08", "25:00-26:00", "mon-funday", "18:00-08:61", "monkey", "mon,wed,fri 18:00-08:00"],
)
def test_what_is_no_hours_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"18:00-08:00|day of the week"):
        parse_hours(text)


def test_hours_end_when_the_clock_on_the_wall_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        host = settings(a={"address": "a", "available": "18:00-08:00"}).hosts["a"]
        evening = datetime(2026, 10, 24, 20, tzinfo=ZoneInfo("Europe/Berlin"))  # the night that has an hour more
        assert host.until(evening.timestamp()) == evening.timestamp() + 13 * 3600
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("name", "mib", "ours"),
    [
        (A100, 81920, "A100-80GB"),
        ("NVIDIA GeForce RTX 4090", 24564, "RTX4090"),
        ("NVIDIA RTX A6000", 49140, "RTXA6000"),
        ("Tesla V100-SXM2-16GB", 16384, "V100"),
        ("NVIDIA TITAN RTX", 24220, "TITANRTX"),
    ],
)
def test_a_gpu_gets_the_catalogues_name_or_its_makers(name: str, mib: int, ours: str) -> None:
    assert name_of(name, mib, ["A100-40GB", "A100-80GB", "V100", "V100-32GB", "T4"]) == ours


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"hosts": {}}, "at least 1"),
        ({"hosts": {"Box": {"address": "a"}}}, "pattern"),
        ({"hosts": {"a": {"address": "x", "gpus": "0-1"}, "b": {"address": "x", "gpus": "1"}}}, "share GPUs of x"),
        ({"hosts": {"a": {"address": "x"}, "b": {"address": "x", "gpus": "1"}}}, "share GPUs of x"),
        ({"hosts": {"a": {"address": "x", "gpus": "1"}, "b": {"address": "x"}}}, "share GPUs of x"),
        ({"hosts": {"a": {"address": "x", "available": "at night"}}}, "is no hours"),
        ({"hosts": {"a": {"address": "x"}}, "ports": "2299-2200"}, "no range of ports"),
        ({"hosts": {"a": {"address": "x", "gpus": "3-0"}}}, "3-0 names no GPU"),
    ],
)
def test_a_section_that_cannot_be_meant_is_refused(section: Mapping[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        OwnSettings.model_validate(section)


# -- what a host answers -----------------------------------------------------------------------------------


def settings(**hosts: Mapping[str, Any]) -> OwnSettings:
    return OwnSettings.model_validate({"hosts": hosts or {"a": {"address": "a"}, "b": {"address": "b"}}})


class Hosts:
    """What each host answers, or raises."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    def __call__(
        self, name: str, settings: OwnSettings, request: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        self.asked.append((name, request))
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        found: dict[str, Any] = answer
        return found


def facts(*gpus: tuple[str, int], **more: Any) -> dict[str, Any]:
    rows = [[str(number), f"GPU-{number}", str(mib), name] for number, (name, mib) in enumerate(gpus)]
    said = {"missing": "", "smi": "", "lingers": True, "user": "ann", "gpus": rows, **more}
    return {"facts": said, "claims": [], "closed": None}


NOTHING: Mapping[str, Any] = {"claims": [], "closed": None}


def claimed(host: str, **more: Any) -> dict[str, Any]:
    made = {
        "id": machine_id(host, OWNER, "t"),
        "cluster": OWNER.cluster,
        "key_mark": OWNER.key_mark,
        "token": "t",
        "node": "n1",
        "host": host,
        "state": "running",
        "launched_at": 1.0,
        "ssh_port": 2222,
        "why": "",
        **more,
    }
    return {"claims": [made], "claim": made, "closed": None}


def launch(answer: Any) -> LaunchOutcome:
    hosts = Hosts(a=facts((A100, 81920)), b=facts())
    cloud = OwnProvisioner(settings(), hosts)
    (offer, _) = cloud.offers(OfferQuery(), 1.0)[::-1]
    hosts.answers["a"] = answer
    request = LaunchRequest("t", OWNER, "n1", offer, IDENTITY.host_key("n1"), ("ssh-ed25519 AAAA",))
    return cloud.launch(request, 1.0)


def test_a_host_is_offered_as_what_it_is_and_once() -> None:
    cloud = OwnProvisioner(settings(), Hosts(a=facts((A100, 81920), (A100, 81920)), b=facts()))
    (found,) = cloud.offers(OfferQuery(gpu="A100", gpus_per_node=2), 1.0)
    assert (found.instance_type, found.gpu, found.gpus, found.room) == ("a", "A100-80GB", 2, 1)
    assert not cloud.offers(OfferQuery(gpu="H100", gpus_per_node=1), 1.0)


def test_a_host_outside_of_its_hours_or_with_a_problem_is_not_offered() -> None:
    never = settings(a={"address": "a", "available": "mon 00:00-01:00"}, b={"address": "b"})
    monday = MONDAY.timestamp()
    hosts = Hosts(a=facts(), b=facts(lingers=False))
    assert not OwnProvisioner(never, hosts, lambda: monday + 3600.0).offers(OfferQuery(), 1.0)
    assert [each.region for each in OwnProvisioner(never, hosts, lambda: monday).offers(OfferQuery(), 1.0)] == ["a"]
    (bad,) = [each for each in OwnProvisioner(never, hosts).check(1.0) if not each.ok]
    assert "loginctl enable-linger ann" in bad.message


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"busy": "GPU 0 is used by another program"}, NoCapacity),
        (NotSentError("a (a) cannot be logged in to"), NoCapacity),
        ({"fatal": "no program 'sshd'"}, Fatal),
        (HostError("a: no space left on device"), NoCapacity),
        (NoAnswerError("a (a) did not answer"), Unknown),
        ({"claim": {"host": "a"}}, Unknown),
        ({"claim": claimed("b")["claim"]}, Unknown),
        ({"claim": claimed("a", node="n2")["claim"]}, Unknown),
        ({"claim": {**claimed("a")["claim"], "token": "another"}}, Unknown),
        ({}, Unknown),
        ({"busy": ["x"]}, Unknown),
        ({"claim": {**claimed("a")["claim"], "state": "on fire"}}, Unknown),
    ],
)
def test_what_came_of_a_claim(answer: Any, kind: type) -> None:
    assert isinstance(launch(answer), kind)


def test_a_host_speaks_for_itself_alone() -> None:
    forged = claimed("a", id=machine_id("b", OWNER, "t"), state="terminated")
    for lie in (claimed("b", state="terminated"), forged):
        cloud = OwnProvisioner(settings(), Hosts(a=lie, b=claimed("b")))
        assert [(each.region, each.state) for each in cloud.instances(OWNER, 1.0)] == [("b", InstanceState.RUNNING)]


@pytest.mark.parametrize(
    "answer",
    [{}, {"claims": "x"}, {"claims": [], "closed": {"until": "soon"}}, [], {**NOTHING, "claims": [0] * 5000}],
)
def test_a_host_that_answers_nonsense_is_a_silent_one(answer: Any) -> None:
    cloud = OwnProvisioner(settings(), Hosts(a=claimed("a"), b=answer))
    with pytest.raises(PartialListingError) as caught:
        cloud.instances(OWNER, 1.0)
    assert [each.region for each in caught.value.found] == ["a"]
    assert set(caught.value.silent) == {"b"}


def test_gpus_are_read_as_they_are_and_as_they_are_not() -> None:
    spark = facts(("NVIDIA GB10, unified", 0))
    spark["facts"]["gpus"][0][2] = "[N/A]"
    mixed = facts((A100, 81920), ("Tesla T4", 15360))
    cloud = OwnProvisioner(settings(), Hosts(a=spark, b=mixed))
    found = {each.what: each for each in cloud.check(1.0)}
    assert found["a"].ok
    assert "several kinds" in found["b"].message
    assert [each.region for each in cloud.offers(OfferQuery(), 1.0)] == ["a"]


def test_a_silent_host_says_nothing_of_the_others() -> None:
    cloud = OwnProvisioner(settings(), Hosts(a=claimed("a"), b=NotSentError("b (b) is off")))
    with pytest.raises(PartialListingError) as caught:
        cloud.instances(OWNER, 1.0)
    assert [each.region for each in caught.value.found] == ["a"]
    assert caught.value.silent == {"b": "b (b) is off"}
    found = cloud.find(OWNER, "t", 1.0)
    assert found is not None
    assert found.state is InstanceState.RUNNING
    with pytest.raises(UnreachableError):
        cloud.find(OWNER, "another", 1.0)


def test_a_claim_that_cannot_be_read_is_evidence_of_nothing() -> None:
    cloud = OwnProvisioner(settings(), Hosts(a=claimed("a", launched_at="soon"), b=NOTHING))
    (found,) = cloud.instances(OWNER, 1.0)
    assert found.state is InstanceState.UNREADABLE
    assert cloud.find(OWNER, "t", 1.0) == found  # it may be the one
    assert cloud.find(OWNER, "another", 1.0) is None


def test_a_machine_is_looked_for_where_it_was_asked_for() -> None:
    hosts = Hosts(a=facts(), b=facts())
    cloud = OwnProvisioner(settings(), hosts)
    offer = next(each for each in cloud.offers(OfferQuery(), 1.0) if each.region == "a")
    hosts.answers = {"a": NoAnswerError("cut"), "b": NotSentError("b does not let us in")}
    cloud.launch(LaunchRequest("t", OWNER, "n1", offer, IDENTITY.host_key("n1"), ()), 1.0)
    hosts.answers["a"] = NOTHING
    assert cloud.find(OWNER, "t", 1.0) is None


# -- hosts that are gone, and hosts that their users want ----------------------------------------------------


@pytest.mark.parametrize(
    ("since", "heard", "gone"),
    [
        ({"a": 5000.0}, "ab", {"a"}),
        ({"a": 5000.1}, "ab", set()),
        ({"a": 5000.0, "b": 5000.0}, "ab", set()),  # together: the network
        ({"a": 5000.0, "b": 5000.0}, "a", {"a"}),  # nobody knows since when the other is silent
        ({"a": 5000.0 - COLD_S, "b": 5000.0 - COLD_S}, "", {"a", "b"}),
        ({"a": 4900.0, "b": 5000.0}, "ab", {"a", "b"}),
        ({"c0": 5000.0, "c1": 5000.0}, ("c0", "c1"), {"c0", "c1"}),  # two entries of one computer
        ({"a": 500.0, "b": 600.0, "c0": 700.0, "c1": 700.0}, "ab", set()),  # nobody answers: we are cut off
    ],
)
def test_a_host_that_is_silent_while_others_answer_is_gone(
    since: Mapping[str, float], heard: Sequence[str], gone: set[str]
) -> None:
    computers = {"a": "a", "b": "b", "c0": "c", "c1": "c"}
    assert set(gone_hosts(since, heard, computers, 5000.0 + GONE_S)) == gone


def test_nothing_runs_on_a_host_that_is_gone_and_what_refuses_a_login_is_not() -> None:
    now = 1000.0
    hosts = Hosts(a=NOTHING, b=NOTHING)
    cloud = OwnProvisioner(settings(), hosts, lambda: now)
    assert cloud.instances(OWNER, 1.0) == []
    hosts.answers["b"] = SilentError("no route to b")
    with pytest.raises(PartialListingError):
        cloud.instances(OWNER, 1.0)
    now += GONE_S
    assert cloud.instances(OWNER, 1.0) == []
    assert cloud.find(OWNER, "t", 1.0) is None
    hosts.answers["b"] = NotSentError("b does not let us in")
    with pytest.raises(PartialListingError):
        cloud.instances(OWNER, 1.0)
    hosts.answers["b"] = SilentError("no route to b")
    with pytest.raises(PartialListingError):  # it begins anew
        cloud.instances(OWNER, 1.0)


def test_a_host_that_its_user_wants_gives_notice_and_is_not_offered() -> None:
    closed = {"since": 1000.0, "until": 5000.0}
    for now, ends, offers in [(1010.0, 1000.0 + CLOSE_NOTICE_S, []), (5000.0, None, ["a"])]:
        answer = {**facts(), **claimed("a"), "closed": closed}
        cloud = OwnProvisioner(settings(a={"address": "a"}), Hosts(a=answer), partial(float, now))
        assert cloud.instances(OWNER, 1.0)[0].preempt_at == ends
        assert [each.region for each in cloud.offers(OfferQuery(), 1.0)] == offers


def test_a_host_whose_hours_end_soon_is_not_begun_with() -> None:
    hours = settings(a={"address": "a", "available": "mon 00:00-02:00"})
    end = (MONDAY + timedelta(hours=2)).timestamp()
    for left, offers in [(1200.0, 0), (1201.0, 1)]:
        cloud = OwnProvisioner(hours, Hosts(a=facts()), partial(float, end - left))
        assert len(cloud.offers(OfferQuery(), 1.0)) == offers


def test_ten_minutes_before_its_hours_end_a_machine_has_a_notice() -> None:
    hours = settings(a={"address": "a", "available": "mon 00:00-02:00"})
    end = (MONDAY + timedelta(hours=2)).timestamp()
    at = {left: OwnProvisioner(hours, Hosts(a=claimed("a")), partial(float, end - left)) for left in (700.0, 600.0)}
    assert [each.instances(OWNER, 1.0)[0].preempt_at for each in at.values()] == [None, end]


def test_an_end_of_a_machine_on_a_host_that_left_the_configuration_is_refused() -> None:
    cloud = OwnProvisioner(settings(), Hosts(a={"left": []}))
    cloud.terminate("own-ca978112-000000000001", 1.0)
    with pytest.raises(Exception, match="put it back"):
        cloud.terminate("own-00000000-000000000001", 1.0)


def test_no_owner_is_everybody() -> None:
    cloud = OwnProvisioner(settings(a={"address": "a"}), Hosts(a=claimed("a")))
    assert len(cloud.instances(None, 1.0)) == 1
    assert cloud.instances(Owner("another", "0" * 16), 1.0) == []
