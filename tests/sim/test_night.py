"""What docs/night.md quotes is what people are sent and shown, in that minute, and not again within the hour."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from supervisor.events import EventKind
from tests.sim.night import DOCUMENT, TROUBLES, play, written

K = EventKind
# When people are told of what, in minutes after it began: alerts of the level `warning` and above.
TOLD: dict[str, Sequence[tuple[int, EventKind]]] = {
    "one node lost, no capacity": [(2, K.NODE_LOST), (30, K.WAITS_LONG)],
    "too few nodes left, no capacity": [(2, K.NODE_LOST)] * 3 + [(30, K.WAITS_LONG)],
    "the cloud's API is away": [(5, K.NOT_LISTED), (65, K.NOT_LISTED)],
    "credentials denied": [(1, K.SILENCE), (1, K.ACCESS_DENIED), (60, K.SILENCE), (61, K.ACCESS_DENIED)],
    "machines do not end": [(10, K.NOT_ENDED), (70, K.NOT_ENDED)],
    "the program hangs": [(5, K.STEPS_HANG), (60, K.STEPS_HANG)],
    "a quota is used up": [(2, K.NODE_LOST), (2, K.QUOTA_REFUSED), (30, K.WAITS_LONG)],
    "credentials of another account": [(0, K.LISTING_DOUBTED), (60, K.LISTING_DOUBTED)],
    "all machines silent": [(2, K.SILENCE), (61, K.SILENCE)],
    "machines cannot be bootstrapped": [(2, K.NODE_LOST), (9, K.BOOTSTRAPS_FAILING), (30, K.WAITS_LONG)],
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_document_has_what_people_read_in_a_night_and_when(trouble: str) -> None:
    night = play(trouble)
    assert night.told() == TOLD[trouble]
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == written(text, {trouble: night}), "run `make docs`, read what it changed, and commit docs/night.md"


def test_every_night_of_the_document_is_played() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.count(": written by `make docs` -->") == len(TROUBLES) == len(TOLD)
