"""Tables of error codes: total, the first row that fits holds, and what is unknown says its name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from provisioners.base import Fatal, NoCapacity, Quota, Scope, Throttled, Transient, Unknown
from provisioners.codes import Code, Kind, find, markdown, outcome

TABLE = (
    Code("Full", Kind.NO_CAPACITY, "docs", Scope.ZONE, 180),
    Code("Limit", Kind.QUOTA, "docs", Scope.REGION, 600, remedy="ask for more", message_part="family cores"),
    Code("Limit", Kind.FATAL, "docs"),
    Code("Slow", Kind.THROTTLED, "docs", memory_s=5),
    Code("Odd.*", Kind.TRANSIENT, "docs"),
    Code("Half", Kind.UNKNOWN, "docs"),
    Code("Used", Kind.USED, "docs"),
)


def test_each_kind_has_its_outcome() -> None:
    assert outcome(TABLE[0], "Full", "z: full") == NoCapacity(Scope.ZONE, 180, "z: full")
    assert outcome(TABLE[1], "Limit", "r: limit") == Quota(Scope.REGION, 600, "r: limit; ask for more")
    assert outcome(TABLE[3], "Slow", "slow") == Throttled(5, "slow")
    assert outcome(TABLE[4], "Odd.Fault", "odd") == Transient("odd")
    assert outcome(TABLE[2], "Limit", "no") == Fatal("no")
    assert isinstance(outcome(TABLE[5], "Half", "half"), Unknown)
    assert isinstance(outcome(TABLE[6], "Used", "used"), Unknown)


def test_words_tell_rows_of_one_code_apart() -> None:
    assert find(TABLE, "Limit", "the Family Cores quota") is TABLE[1]
    assert find(TABLE, "Limit", "something else") is TABLE[2]
    assert find(TABLE, "Odd.Fault") is TABLE[4]
    assert find(TABLE, "Odd") is None


@given(name=st.text(), message=st.text())
def test_every_code_has_an_outcome_and_an_unknown_one_is_told(name: str, message: str) -> None:
    row = find(TABLE, name, message)
    found = outcome(row, name, message)
    if row is None:
        assert isinstance(found, Transient)
        assert found.unknown_code == name


def test_the_page_shows_each_row() -> None:
    assert markdown(TABLE).splitlines()[2:4] == [
        "| `Full` | no capacity | zone | 180 s | docs |",
        '| `Limit` with "family cores" | quota | region | 600 s | docs |',
    ]
