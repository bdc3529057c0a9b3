"""Messages are decoded into typed, bounded values, or refused with a WireError; nothing else escapes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer import wire
from spotsup_trainer.decoding import MAX_ITEMS, MAX_TEXT_CHARACTERS, printable
from spotsup_trainer.wire import (
    MAX_MESSAGE_BYTES,
    AgentConfig,
    AgentStatus,
    CaBundle,
    Done,
    Ended,
    Failure,
    Health,
    Hint,
    Loss,
    Member,
    Metadata,
    Notice,
    Pause,
    Pauses,
    Progress,
    RankTimes,
    Result,
    Round,
    RoundMember,
    Tombstone,
    WireError,
    decode,
    encode,
)

FAILURE = Failure(2, 1, -9, "killed", 5.0)
CONFIG = AgentConfig(
    "c", "j", "j-u", "n", "10.0.0.1", ("http://e:2379",), Metadata("aws", "http://m"), "python", "/code", "/run",
    "/log", "/ckpt", ("train.py", "x" * 10_000, "\x1b"), 1, 4, 2, {"LR": "0.1"},
)  # fmt: skip
MESSAGES: tuple[Any, ...] = (
    Hint(("a", "b"), 1, 4, "why", ("c",), hold=True),
    Member("a", "i", "10.0.0.1", 4000, "waiting", 3, FAILURE, parked=True),
    Round(3, (RoundMember("a", "i", "10.0.0.1", 4000),), 7.0, "why", 1, FAILURE, (Loss("b", 6.0),)),
    AgentStatus("a", "boot", 1, 2.0, "0.1", "importing x"),
    Notice("a", 130.0, 10.0, "aws"),
    Health("a", False, 10.0, "Xid 79", 79, fatal=True),
    Done("a", "a1", 3, 10.0),
    Tombstone("a", "lost", 3.0),
    Progress(3, 100, 5.0, 4.0, 1, 800, 0.5, 90, "disk full", 0.25, "a quarter"),
    Ended("a", "left", 0, "", 3.0),
    RankTimes(3, 7.0, (0.1, 0.2), (0.01, 0.02)),
    Result("success", "", 3),
    Pauses("a", (Pause(3, 7.0, 5.5, 5.0, 0.0, 0.1, 0.2, None, 0.15, 0.05),)),
    CaBundle("-----BEGIN CERTIFICATE-----\n"),
    CONFIG,
)
NOTICE = {"node": "a", "deadline": 130.0, "seen_at": 10.0, "source": "aws"}
PROGRESS = {"round": 1, "step": 2, "at": 3.0, "first_step_at": 3.0}
MEMBER = {"node": "a", "incarnation": "i", "addr": "x", "store_port": 1, "state": "waiting"}
ROUND = {"number": 1, "members": [], "formed_at": 1.0}


def test_every_kind_of_message_comes_back_as_it_was_written() -> None:
    assert {type(message) for message in MESSAGES} | {Failure, Loss, Pause, RoundMember, Metadata} == {
        kind
        for kind in vars(wire).values()
        if hasattr(kind, "__dataclass_fields__") and kind not in {wire.Keys, wire.Grant}
    }
    for message in MESSAGES:
        assert decode(type(message), encode(message)) == message


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        (Notice, NOTICE | {"deadline": "soon"}, "deadline is not a finite number"),
        (Notice, NOTICE | {"deadline": None}, "deadline is not a finite number"),
        (Notice, NOTICE | {"deadline": math.inf}, "deadline is not a finite number"),
        (Notice, NOTICE | {"deadline": 1e300}, "deadline is not a time"),
        (Notice, NOTICE | {"seen_at": -1}, "seen_at is not a time"),
        (Notice, NOTICE | {"seen_at": True}, "seen_at is not a finite number"),
        (Notice, NOTICE | {"source": 5}, "source is not a text"),
        (Progress, PROGRESS | {"round": "1"}, "round is not a whole number"),
        (Progress, PROGRESS | {"round": True}, "round is not a whole number"),
        (Progress, PROGRESS | {"step": 1.0}, "step is not a whole number"),
        (Progress, PROGRESS | {"step": 2**53 + 1}, "step is not a whole number"),
        (Progress, PROGRESS | {"checkpoint_problem": 5}, "checkpoint_problem is not a text"),
        (Progress, PROGRESS | {"fraction": math.nan}, "fraction is not a finite number"),
        (Progress, PROGRESS | {"loss": "low"}, "loss is not a finite number"),
        (Member, MEMBER | {"state": "dead"}, "state is none of waiting, running"),
        (Member, MEMBER | {"state": ["waiting"]}, "state is none of waiting, running"),
        (Member, MEMBER | {"parked": 1}, "parked is not true or false"),
        (Member, MEMBER | {"failure": 1}, "failure not an object"),
        (Member, MEMBER | {"failure": {"round": 1}}, "failure local_rank is missing"),
        (Round, ROUND | {"members": "abc"}, "members is not a list"),
        (Round, ROUND | {"members": ["abc"]}, "members not an object"),
        (Round, ROUND | {"members": [1] * (MAX_ITEMS + 1)}, "members is not a list of at most"),
        (Hint, {"members": [["a"]], "min_nodes": 1, "max_nodes": 1}, "members is not a text"),
        (Result, {"message": "", "round": 1}, "outcome is missing"),
        (Result, [], "not an object"),
    ],
)
def test_a_field_of_another_type_or_beyond_its_bound_is_refused(kind: type, fields: Any, why: str) -> None:
    with pytest.raises(WireError, match=f"^not a {kind.__name__}: {why}"):
        decode(kind, json.dumps(fields))


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff", b"nonsense", b"[" * 200_000, b'{"a":' * 200_000, b" " * (MAX_MESSAGE_BYTES + 1), b"9" * 5000],
)
def test_bytes_that_are_no_message_are_refused(raw: bytes) -> None:
    for message in MESSAGES:
        with pytest.raises(WireError, match=f"^not a {type(message).__name__}: "):
            decode(type(message), raw)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_no_reason_to_ignore_the_progress(loss: float) -> None:
    assert decode(Progress, json.dumps(PROGRESS | {"loss": loss})) == Progress(1, 2, 3.0, 3.0)


def test_texts_are_cut_and_what_cannot_be_printed_is_replaced() -> None:
    long = decode(Result, json.dumps({"outcome": "failure", "message": "x" * 10_000, "round": 1}))
    assert long.message == "x" * (MAX_TEXT_CHARACTERS - 1) + "…"
    assert printable("a\tb\nc\x1b[2J\x00\ud800\u202e\u00a0é") == "a\tb\nc\ufffd[2J\ufffd\ufffd\ufffd é"


def test_what_bootstrap_wrote_is_never_cut() -> None:
    assert decode(AgentConfig, encode(CONFIG)).command == CONFIG.command


def test_unknown_fields_are_ignored() -> None:
    assert decode(Notice, json.dumps(NOTICE | {"newer": [[[]]]})) == Notice("a", 130.0, 10.0, "aws")


@given(st.sampled_from(MESSAGES), st.data())
def test_any_json_is_a_message_or_refused(message: Any, data: st.DataObject) -> None:
    """What is decoded has its declared types: it can be written and read again."""
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    )
    fields = json.loads(encode(message))
    for name in data.draw(st.lists(st.sampled_from(sorted(fields)), max_size=3)):
        fields[name] = data.draw(anything)
    try:
        found = decode(type(message), json.dumps(fields))
    except WireError:
        return
    assert decode(type(message), encode(found)) == found
