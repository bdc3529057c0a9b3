"""The places of its list that a job went to. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlacesRecord:
    """The places of its list that a job went to."""

    since: float = 0.0  # when it went to the place that it is in; 0 in its first
    tried: int = 0  # how many it went to since it last had a machine


@dataclass(frozen=True, slots=True)
class PlacesRules:
    """How long a job tries each of its places."""

    stay_s: float = 60.0  # a job that has no machine stays so long in each; for five times as long later
