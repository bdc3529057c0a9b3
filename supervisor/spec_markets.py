"""`market` of a job file: on which markets its nodes are bought, in the order of wish."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from provisioners.base import Market
from provisioners.registry import CLOUDS

_THEN = "-then-"


@cache
def markets_of(text: str) -> tuple[Market, ...]:
    """Return the markets that a key names. Raises ValueError: one sentence."""
    names = text.split(_THEN)
    if unknown := [each for each in names if each not in set(Market)]:
        raise ValueError(f"{unknown[0]!r} is no market; write {', '.join(Market)}, or several of them in a list")
    if len(set(names)) < len(names):
        raise ValueError("each market is named once")
    return tuple(Market(each) for each in names)


@cache
def dear_of(markets: tuple[Market, ...]) -> frozenset[Market]:
    """Return those that are asked for only once spot was refused, and left for spot once that is there again."""
    return frozenset(markets[markets.index(Market.SPOT) + 1 :]) if Market.SPOT in markets else frozenset()


def sold_by(cloud: str) -> tuple[Market, ...]:
    """Return how a cloud's machines can be bought; "", the only cloud that the daemon has, may sell all."""
    return CLOUDS[cloud].markets if cloud in CLOUDS else tuple(Market)


def why_unsold(markets: tuple[Market, ...], clouds: Sequence[str]) -> str:
    """Return why a job's places do not go with its markets, and what does; "" if they do."""
    for cloud in clouds:
        if not set(sold_by(cloud)).intersection(markets):
            return f"{cloud} sells no {' or '.join(markets)} machines: `market` is {' or '.join(sold_by(cloud))} there"
    for market in markets:
        if not any(market in sold_by(cloud) for cloud in clouds):
            sells = "sells" if len(clouds) == 1 else "sell"
            return f"{' and '.join(clouds)} {sells} no {market} machines: leave {market} out of `market`"
    return ""


def _joined(value: Any) -> Any:
    return _THEN.join(map(str, value)) if isinstance(value, list | tuple) else value


def _checked(value: str) -> str:
    markets_of(value)
    return value


Markets = Annotated[str, BeforeValidator(_joined), AfterValidator(_checked)]
"""One market, or several joined by `-then-`, as which a list is taken too: one form for all who read it."""
