"""Judges a soak: the cost of each change, exactness of the data, growth of the launchers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from spotsup_trainer.session.audit import Report, RoundChange
from spotsup_trainer.wire import Round

from tests.soak.fleet import Done
from tests.soak.nodes import Usage, most_listening
from tests.soak.plan import ORDERLY, Kind

# How much more a warm launcher may hold at the end. Python's and torch's own memory varies.
MAX_GROWTH_KIB = 8 * 1024
MAX_MORE_FILES = 2
MAX_MORE_THREADS = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one change: of all rounds that it led to, until training went on as it should."""

    done: Done
    rounds: int
    pause_s: float
    steps_lost: int


def costs(done: Sequence[Done], report: Report, until: float) -> list[Cost]:
    """Attributes each new round before `until` (UNIX seconds) to the last change that began before its first step."""
    began = {span.round: span.first_at for span in report.rounds}
    found = []
    for number, each in enumerate(done):
        end = done[number + 1].began_at if number + 1 < len(done) else until
        changes = [change for change in report.changes if each.began_at <= began[change.after] < end]
        found.append(Cost(each, len(changes), sum(c.pause_s for c in changes), sum(_lost(changes))))
    return found


def _lost(changes: Iterable[RoundChange]) -> list[int]:
    return [change.steps_lost for change in changes]


def broken_promises(
    found: Sequence[Cost], report: Report, rounds: Mapping[int, Round], most_steps_lost: int
) -> list[str]:
    """Every broken promise, one sentence each."""
    broken = []
    for cost in found:
        what = f"change {cost.done.change.number}, {cost.done.change.kind}:"
        limit = 0 if cost.done.change.kind in ORDERLY else most_steps_lost * max(1, cost.rounds)
        if cost.steps_lost > limit:
            broken.append(f"{what} {cost.steps_lost} steps were lost; at most {limit} may be")
    if report.samples_repeated or report.samples_missed:
        broken.append(f"{report.samples_repeated} samples were repeated, {report.samples_missed} missed")
    broken += _unstable_ranks(rounds)
    return broken + _unfair_blame([cost.done.change.kind for cost in found], rounds[max(rounds)].app_failures)


def _unfair_blame(kinds: Sequence[Kind], blamed: int) -> list[str]:
    """To a launcher a killed worker is a failure of the program (P5). A worker that is killed while a node joins may be
    killed before the change of members or after it."""
    alone, joining = (sum(each is kind for each in kinds) for kind in (Kind.WORKER, Kind.JOIN_AND_WORKER))
    if alone <= blamed <= alone + joining:
        return []
    return [f"the program was blamed {blamed} times; {alone} workers were killed, and {joining} while a node joined"]


def _unstable_ranks(rounds: Mapping[int, Round]) -> list[str]:
    """Survivors keep their order: ranks are stable."""
    broken = []
    for old, new in pairwise(rounds[number] for number in sorted(rounds)):
        before, after = ([(member.node, member.incarnation) for member in each.members] for each in (old, new))
        orders = [[node for node in before if node in after], [node for node in after if node in before]]
        if orders[0] != orders[1]:
            broken.append(f"round {new.number} has its survivors in another order: {orders[0]} became {orders[1]}")
    return broken


def growth(name: str, usage: Sequence[Usage], warm: int) -> list[str]:
    """What a launcher holds too much of, or more and more; `warm`: the first measurement that counts."""
    broken = []
    if many := [each for each in usage if each.listening > most_listening(trains=each.trains)]:
        ports, rounds = max(each.listening for each in many), ", ".join(str(each.round) for each in many[:10])
        broken.append(f"{name} listened on up to {ports} ports at once in rounds {rounds}: old stores were not closed")
    if len(usage) <= warm:
        return broken
    first, last = usage[warm], usage[-1]
    over = f"over rounds {first.round} to {last.round}"
    for what, before, after in (
        ("launcher", first.rss_kib, last.rss_kib),
        ("fork server", first.server_kib, last.server_kib),
    ):
        if after - before > MAX_GROWTH_KIB:
            broken.append(f"{name}'s {what} grew from {before} to {after} KiB {over}")
    for what, before, most, after in (
        ("files open", first.files, MAX_MORE_FILES, last.files),
        ("threads", first.threads, MAX_MORE_THREADS, last.threads),
        ("files in its run folder", first.run_dir, 0, last.run_dir),
    ):
        if after - before > most:
            broken.append(f"{name} had {before} {what} and then {after}, {over}")
    return broken
