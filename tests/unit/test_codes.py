"""Tables of error codes: total, the first row that fits holds, and what is unknown says its name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioners.base import Fatal, NoCapacity, Quota, Scope, Throttled, Transient, Unknown
from provisioners.codes import Code, ErrorTable, Kind, find, markdown, outcome
from provisioners.registry import CLOUDS

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


def test_the_message_tells_rows_of_one_code_apart() -> None:
    assert find(TABLE, "Limit", "the Family Cores quota") is TABLE[1]
    assert find(TABLE, "Limit", "something else") is TABLE[2]
    assert find(TABLE, "Odd.Fault") is TABLE[4]
    assert find(TABLE, "Odd") is None


@given(name=st.text(), message=st.text())
def test_every_code_has_an_outcome_and_an_unknown_one_is_named(name: str, message: str) -> None:
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


# -- the clouds' tables --------------------------------------------------------------------------------------

ERRORS: dict[str, ErrorTable] = {
    name: import_module(f"provisioners.{name}.errors").ERRORS for name, cloud in CLOUDS.items() if cloud.has_catalog
}


@dataclass(frozen=True, slots=True)
class Reply:
    """An error that some cloud answered."""

    code: str
    message: str = "so it is"
    retry_after_s: float = 0.0

    def sentence(self, where: str = "") -> str:
        return f"{where} answered {self.code}"


@pytest.mark.parametrize("cloud", ERRORS)
def test_an_unknown_code_is_transient_and_named(cloud: str) -> None:
    new = ERRORS[cloud].launch_outcome(Reply("SomethingNew"), "zone-a")
    assert isinstance(new, Transient)
    assert new.unknown_code == "SomethingNew"
    assert not ERRORS[cloud].is_retryable(Reply("SomethingNew"))


@pytest.mark.parametrize("cloud", ERRORS)
def test_each_row_has_a_source_and_each_temporary_refusal_a_duration(cloud: str) -> None:
    rows = ERRORS[cloud].rows
    for row in rows:
        assert row.source
        if row.kind in {Kind.NO_CAPACITY, Kind.QUOTA}:
            assert row.scope is not None
            assert row.memory_s > 0
    assert len({(row.name, row.message_part) for row in rows}) == len(rows)


@pytest.mark.parametrize("cloud", ERRORS)
def test_no_row_hides_another(cloud: str) -> None:
    rows = ERRORS[cloud].rows
    for number, row in enumerate(rows):
        name = row.name.replace(".*", ".X")
        assert not any(before.fits(name, row.message_part) for before in rows[:number]), row.name


@pytest.mark.parametrize("cloud", ERRORS)
def test_a_remedy_for_missing_permissions_is_known_as_one(cloud: str) -> None:
    for row in ERRORS[cloud].rows:
        if "docs/permissions" in row.remedy or row.remedy.startswith("renew"):
            assert ERRORS[cloud].denial_remedy(Reply(row.name, row.message_part)) == row.remedy
