"""Broken values: bytes changed at random, and JSON whose parts are replaced by what a reader may not expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

CONTROL = "".join(chr(number) for number in range(32))
LITERALS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "9" * 400,
    "1e400",
    '"\\ud800"',
    "[" * 2000,
    '{"a":' * 2000,
)
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63)),
    *(0.5, -0.0, 1e308, 1e-308, 1e12, 1e18),
    *("", " ", "\n", "0", "soon", "nan", "x" * 5000, CONTROL * 40, "\u202e\u0000", "é" * 3000, "../.."),
    *("job-u-1", "bad-u-1", "waiting", "running", "leaving", "done", "success", "failure", "left"),
    *("gone", "requested", "terminating", "spot", [], {}, [[]], [{}], {"": ""}, [None], ["job-u-1"]),
    *(["bad-u-1"] * 3, [1] * 300, {"a": {"a": {"a": [[[[]]]]}}}),
)  # fmt: skip
MARK = "@literal@"


def broken(raw: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    """One value, broken in one of many ways. `others`: values of other kinds."""
    return rng.choices(WAYS, WEIGHTS)[0](raw, rng, others)


def _structured(raw: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    """Other values in the places of a few."""
    try:
        value = json.loads(raw)
    except ValueError:
        return _bytes(raw, rng, others)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = _changed(value, rng)
    text = json.dumps(value)
    while f'"{MARK}"' in text:
        text = text.replace(f'"{MARK}"', rng.choice(LITERALS), 1)
    return text.encode(errors="surrogatepass")


def _changed(value: Any, rng: Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        how = rng.random()
        if how < 0.1:
            return {each: inside for each, inside in value.items() if each != key}
        if how < 0.15:
            return value | {rng.choice(["", "new", key.upper(), "schema", "x" * 300]): rng.choice(ODD)}
        return value | {key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        index = rng.randrange(len(value))
        how = rng.random()
        if how < 0.2:
            return value[:index] + value[index + 1 :]
        if how < 0.3:
            return value * rng.choice((2, 3, 100))
        return [*value[:index], _changed(value[index], rng), *value[index + 1 :]]
    if type(value) in {int, float} and abs(value) < 1e18 and rng.random() < 0.4:  # not NaN: no comparison holds
        near = (value + 1, value - 1, -value, value * 1e6, value + 0.5, int(value), str(value), value + 100_000)
        return rng.choice(near)
    if rng.random() < 0.05:
        return MARK
    return rng.choice(ODD)


def _bytes(raw: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    """A few bytes flipped, dropped, inserted or repeated."""
    data = bytearray(raw or b"{}")
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(5):
            case 0 if data:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 5))
            case 3:
                data[at:at] = data[at : at + rng.randrange(1, 40)]
            case _:
                data[at : at + 1] = rng.choice((b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\x00", b"e9", b"-"))
    return bytes(data)


def _cut(raw: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    return raw[: rng.randrange(len(raw) + 1)]


def _of_another_kind(raw: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    return rng.choice(others)


def _spliced(raw: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return raw[: rng.randrange(len(raw) + 1)] + other[rng.randrange(len(other) + 1) :]


def _noise(raw: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    return rng.randbytes(rng.randrange(64))


def _huge(raw: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    size = rng.choice((10_000, 70_000, 1_100_000))
    return rng.choice((b"[", b'{"a":', b" ", b'"', b"1", b"\xff")) * size


WAYS: tuple[Callable[[bytes, Random, Sequence[bytes]], bytes], ...] = (
    *(_structured, _bytes, _cut, _of_another_kind, _spliced, _noise, _huge),
)  # fmt: skip
WEIGHTS = (70, 15, 4, 4, 4, 2.9, 0.1)
