"""What a soak has shown: pauses by kind of change, exactness of the data, growth of the launchers. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from spotsup_trainer.session.audit import Report, RoundChange
from spotsup_trainer.wire import Round

from benchmarks.results import Row, Sample, summarise
from tests.soak.fleet import Done
from tests.soak.nodes import Usage, most_listening
from tests.soak.plan import ORDERLY, Kind

SUBJECT = "spotsup"
PAUSE, PAUSE_P95, ROUNDS, LOST = "pause", "pause, 95th percentile", "rounds", "steps lost"
# What a launcher may hold more at the end than once it is warm. Python's and torch's own memory comes and goes.
MAX_GROWTH_KIB = 8 * 1024
MAX_MORE_FILES = 2
MAX_MORE_THREADS = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """What one change cost: the pauses of all rounds that it led to, until training went on as it should."""

    done: Done
    rounds: int
    pause_s: float
    steps_lost: int


def costs(done: Sequence[Done], report: Report, until: float) -> list[Cost]:
    """Each new round before `until` (UNIX seconds) belongs to the last change that began before its first step."""
    began = {span.round: span.first_at for span in report.rounds}
    found = []
    for number, each in enumerate(done):
        end = done[number + 1].began_at if number + 1 < len(done) else until
        changes = [change for change in report.changes if each.began_at <= began[change.after] < end]
        found.append(Cost(each, len(changes), sum(c.pause_s for c in changes), sum(_lost(changes))))
    return found


def _lost(changes: Iterable[RoundChange]) -> list[int]:
    return [change.steps_lost for change in changes]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def rows(found: Sequence[Cost]) -> list[Row]:
    """Per kind, and over all."""
    groups: defaultdict[str, list[Cost]] = defaultdict(list)
    for cost in found:
        groups[cost.done.change.kind].append(cost)
    samples: list[Sample] = []
    for case, group in [*sorted(groups.items()), ("all changes", list(found))]:
        pauses = [cost.pause_s for cost in group]
        samples += [Sample(case, SUBJECT, PAUSE, "s", pause) for pause in pauses]
        samples.append(Sample(case, SUBJECT, PAUSE_P95, "s", percentile(pauses, 0.95)))
        samples += [Sample(case, SUBJECT, ROUNDS, "rounds", float(cost.rounds)) for cost in group]
        samples += [Sample(case, SUBJECT, LOST, "steps", float(cost.steps_lost)) for cost in group]
    return summarise(samples)


def broken_promises(
    found: Sequence[Cost], report: Report, rounds: Mapping[int, Round], most_steps_lost: int
) -> list[str]:
    """What was not as it must be, in words."""
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
    """A worker that is killed is the program's failure for all that a launcher knows (P5). One that is killed while a
    node joins may be killed before the change of members, or after it.
    """
    alone, joining = (sum(each is kind for each in kinds) for kind in (Kind.WORKER, Kind.JOIN_AND_WORKER))
    if alone <= blamed <= alone + joining:
        return []
    return [f"the program was blamed {blamed} times; {alone} workers were killed, and {joining} while a node joined"]


def _unstable_ranks(rounds: Mapping[int, Round]) -> list[str]:
    """Survivors keep their order (design: ranks are stable)."""
    broken = []
    for old, new in pairwise(rounds[number] for number in sorted(rounds)):
        before, after = ([(member.node, member.incarnation) for member in each.members] for each in (old, new))
        orders = [[node for node in before if node in after], [node for node in after if node in before]]
        if orders[0] != orders[1]:
            broken.append(f"round {new.number} has its survivors in another order: {orders[0]} became {orders[1]}")
    return broken


def growth(name: str, usage: Sequence[Usage], warm: int) -> list[str]:
    """What a launcher holds too much of, or more and more; `warm`: after how many looks it has all that it needs."""
    broken = []
    if many := [each for each in usage if each.listening > most_listening(trains=each.trains)]:
        ports, rounds = max(each.listening for each in many), ", ".join(str(each.round) for each in many[:10])
        broken.append(f"{name} listened on up to {ports} ports at once, in rounds {rounds}: old stores must be closed")
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
