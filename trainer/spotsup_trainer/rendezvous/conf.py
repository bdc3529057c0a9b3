"""Reads what torchrun passes to a rendezvous backend: `--rdzv-endpoint`, `--rdzv-id` and `--rdzv-conf`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousParameters


def endpoints(text: str) -> tuple[str, ...]:
    """etcd's addresses from a list separated by commas; `http://` by default. Raises ValueError for an empty list."""
    found = tuple(each.strip() for each in text.split(",") if each.strip())
    if not found:
        raise ValueError("--rdzv-endpoint is empty; it should be etcd's address, such as http://10.0.0.5:2379")
    return tuple(each if "://" in each else f"http://{each}" for each in found)


def name(what: str, value: str) -> str:
    """Return one part of an etcd key. Raises ValueError."""
    if not value or "/" in value:
        raise ValueError(f"{what} is {value!r}; it is part of an etcd key and must not be empty or have a slash")
    return value


def count(params: RendezvousParameters, key: str) -> int:
    """Return a whole number in `--rdzv-conf`, 1 without one. Raises ValueError unless it is 1 or more."""
    value = str(params.get(key, 1))
    if not value.isdigit() or int(value) < 1:
        raise ValueError(f"--rdzv-conf {key}={value}; it must be a whole number, 1 or more")
    return int(value)


def seconds(params: RendezvousParameters, key: str, default: float) -> float:
    """Return a time in `--rdzv-conf`, in seconds. Raises ValueError unless it is a number above 0."""
    value = params.get(key, default)
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ValueError(f"--rdzv-conf {key}={value}; it must be a number of seconds above 0")
    return found
