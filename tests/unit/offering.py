"""A cloud that does nothing but offer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from provisioners.base import Offer, OfferQuery

Answer: TypeAlias = Callable[[OfferQuery], Sequence[Offer]]


class Stub:
    """`answer` says what it offers."""

    name = "local"

    def __init__(self, answer: Answer) -> None:
        self.offered = answer

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        return self.offered(query)

    def _never(self, *_: object) -> Any:
        raise AssertionError("asking for a price calls for nothing else")

    launch = find = instances = terminate = leftovers = remove = console = check = _never


def raising(error: Exception) -> Answer:
    """It cannot be asked, or has nothing."""

    def answer(_query: OfferQuery) -> Sequence[Offer]:
        raise error

    return answer
