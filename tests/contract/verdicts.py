"""Whether each numbered assumption of docs/clouds.md held in a run. Pure: from evidence to verdicts.

"Not seen" is the answer where the run did not come so far, or where something else may have been the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from provisioners.base import EndCause, Instance, InstanceState
from tests.contract.evidence import Evidence, Seen, Step, is_over

# The limits that the text of the assumptions names, in seconds.
LISTED_S = 300.0  # timing.consistency_s
LOGIN_S = 600.0
CONSOLE_S = 900.0
CLOCK_S = 60.0
ENDED_S = 600.0
LEFT_S = 600.0
LOSS_SEEN_S = 120.0
EVICTED_S = {"gcp": 180.0, "azure": 1800.0, "aws": 300.0}
_NOTICED_S = 5.0  # how long after its announcement a notice may be in the journal
_LOOKS_S = 10.0  # how long after it happened a listing of ours may show something


class Verdict(StrEnum):
    """Of one assumption."""

    HELD = "held"
    FAILED = "did not hold"
    NOT_SEEN = "not seen"


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, and what it rests on."""

    verdict: Verdict
    evidence: str


def judge(evidence: Evidence, numbers: Mapping[str, str]) -> dict[str, Judged]:
    """Number -> verdict, of all numbers that are about this cloud. `numbers`: number -> its text."""
    ours = {"aws": "E", "gcp": "G", "azure": "Z"}[evidence.cloud]
    return {
        number: JUDGES[number](evidence) if number in JUDGES else _not_seen("this run does not try it")
        for number in numbers
        if number[0] in {"A", ours}
    }


def _held(text: str) -> Judged:
    return Judged(Verdict.HELD, text)


def _failed(text: str) -> Judged:
    return Judged(Verdict.FAILED, text)


def _not_seen(text: str) -> Judged:
    return Judged(Verdict.NOT_SEEN, text)


def _by(holds: bool, text: str) -> Judged:
    return _held(text) if holds else _failed(text)


def _missing(step: Step) -> Judged:
    return _not_seen(f"the run did not come to: {step}")


def _launched(evidence: Evidence) -> Seen | None:
    seen = evidence.first(Step.LAUNCH)
    return seen if seen is not None and seen.machine else None


def _same_token(evidence: Evidence) -> Judged:
    first, again = _launched(evidence), evidence.first(Step.LAUNCH_AGAIN)
    if first is None or again is None:
        return _missing(Step.LAUNCH_AGAIN)
    text = f"first: machine {first.machine}; again, {again.at - first.at:.1f} s later: {again.answer}"
    before = _until(evidence, Step.LAUNCH_AFTER_END)
    if len(before) > 1:
        return _failed(f"{text}; listed under one token: {', '.join(before)}")
    return _by(again.machine == first.machine, text) if again.machine else _not_seen(text)


def _until(evidence: Evidence, step: Step) -> list[str]:
    """The probe's machines that were listed before a call was sent."""
    limit = evidence.first(step)
    sent = limit.at - limit.took_s if limit else float("inf")
    found = [each for each in evidence.listings if each.owner == evidence.probe and each.at < sent]
    return list(dict.fromkeys(machine.id for listing in found for machine in listing.machines))


def _token_after_end(evidence: Evidence) -> Judged:
    first, late = _launched(evidence), evidence.first(Step.LAUNCH_AFTER_END)
    if first is None or late is None:
        return _missing(Step.LAUNCH_AFTER_END)
    machines = evidence.ids(evidence.probe)
    others = [
        each for each in (late.machine, *machines) if each not in {"", first.machine, *_until(evidence, late.step)}
    ]
    text = f"{late.at - first.at:.0f} s after the launch: {late.answer}"
    # Google and Azure give a name again: the same id, and another machine, if it is listed as alive afterwards.
    alive = [at for at, each in evidence.of(first.machine) if at > late.at and not is_over(each)]
    if others or (late.machine and alive):
        return _failed(f"{text}; listed afterwards: {', '.join(others) or first.machine}")
    return _held(text)


def _listed_soon(evidence: Evidence) -> Judged:
    first = _launched(evidence)
    if first is None:
        return _missing(Step.LAUNCH)
    sighting = next(iter(evidence.of(first.machine)), None)
    if sighting is None:
        return _failed(f"{first.machine} was never listed by its tags")
    after_s = max(sighting[0] - first.at, 0.0)
    return _by(after_s <= LISTED_S, f"listed {after_s:.1f} s after the launch was answered")


def _whole_tags(evidence: Evidence) -> Judged:
    found = []
    for machine in (*evidence.ids(evidence.probe), *evidence.ids(evidence.job)):
        first = next((each for _, each in evidence.of(machine) if each is not None), None)
        if first is None or first.state is InstanceState.TERMINATED:
            continue
        whole = first.owner.cluster and first.owner.key_mark and first.node and first.token
        if not whole:
            return _failed(
                f"{machine} was first listed with owner {first.owner}, node {first.node!r}, token {first.token!r}"
            )
        found.append(machine)
    return _held(f"{len(found)} machines, each at its first sighting") if found else _not_seen("nothing was listed")


def _address(evidence: Evidence) -> Judged:
    first = _launched(evidence)
    if first is None:
        return _missing(Step.LAUNCH)
    sightings = [(at, each) for at, each in evidence.of(first.machine) if each is not None]
    running = next((at for at, each in sightings if each.state is InstanceState.RUNNING), None)
    reachable = next((at for at, each in sightings if each.ssh_host and each.state is InstanceState.RUNNING), None)
    if running is None:
        return _not_seen("it was never listed as running")
    if reachable is None:
        return _failed("it was listed as running, and never with an address")
    return _by(reachable - running <= LISTED_S, f"{reachable - running:.1f} s after it was listed as running")


def _login(evidence: Evidence) -> Judged:
    seen = evidence.first(Step.LOGIN)
    if seen is None:
        return _missing(Step.LOGIN)
    return _by(seen.ok and seen.took_s <= LOGIN_S, f"after {seen.took_s:.0f} s: {seen.answer}")


def _console(evidence: Evidence) -> Judged:
    seen = evidence.first(Step.CONSOLE)
    if seen is None:
        return _missing(Step.CONSOLE)
    first = _launched(evidence)
    after_s = seen.at - first.at if first else 0.0
    if seen.ok:
        return _by(after_s <= CONSOLE_S, f"{seen.answer}, {after_s:.0f} s after the launch")
    return _failed(seen.answer) if after_s > CONSOLE_S else _not_seen(f"none within {after_s:.0f} s, when it was ended")


def _clock(evidence: Evidence) -> Judged:
    first = _launched(evidence)
    times = (
        []
        if first is None
        else [each.launched_at for _, each in evidence.of(first.machine) if each and each.launched_at]
    )
    if first is None or not times:
        return _not_seen("no listing said when it was launched")
    off_s = times[0] - (first.at - first.took_s)
    return _by(abs(off_s) <= CLOCK_S + first.took_s, f"launched {off_s:+.1f} s after our call, by the cloud's clock")


def _found(evidence: Evidence) -> Judged:
    first, seen = _launched(evidence), evidence.first(Step.FIND)
    if first is None or seen is None:
        return _missing(Step.FIND)
    return _by(seen.machine == first.machine, seen.answer)


def _goes_on(evidence: Evidence) -> Judged:
    """No listing lacks a machine that an earlier one had, before anybody asked for its end."""
    checked = 0
    for machine in evidence.ids(evidence.probe):
        asked = next((each for each in evidence.seen if each.step is Step.TERMINATE), None)
        until = asked.at - asked.took_s if asked else float("inf")
        for at, each in evidence.of(machine):
            if at < until and each is None:
                return _failed(f"{machine} was missing from a listing before its end was asked for")
        checked += 1
    return _held(f"{checked} machines") if checked else _not_seen("nothing was listed")


def _ended_in_time(evidence: Evidence) -> Judged:
    first, asked = _launched(evidence), evidence.first(Step.TERMINATE)
    if first is None or asked is None:
        return _missing(Step.TERMINATE)
    over = next(
        (at for at, each in evidence.of(first.machine) if at >= asked.at - asked.took_s and is_over(each)), None
    )
    if over is None:
        return _failed(f"it was still listed when the run ended; the call was answered: {asked.answer}")
    return _by(over - asked.at <= ENDED_S, f"{max(over - asked.at, 0.0):.1f} s after the call")


def _twice(evidence: Evidence) -> Judged:
    seen = evidence.first(Step.TERMINATE_AGAIN)
    return _missing(Step.TERMINATE_AGAIN) if seen is None else _by(seen.ok, seen.answer)


def _last_words(evidence: Evidence, machine: str) -> Instance | None:
    """The last sighting of a machine whose cause of end is set."""
    return next((each for _, each in reversed(list(evidence.of(machine))) if each and each.end_cause), None)


def _by_user(evidence: Evidence) -> Judged:
    first, asked = _launched(evidence), evidence.first(Step.TERMINATE)
    if first is None or asked is None:
        return _missing(Step.TERMINATE)
    last = _last_words(evidence, first.machine)
    if last is None:
        return _failed("it ended, and no listing said why")
    return _by(last.end_cause is EndCause.USER, _words(last))


def _words(instance: Instance) -> str:
    return f"{instance.id} {instance.state}, cause {instance.end_cause}" + (
        f": {instance.end_message}" if instance.end_message else ""
    )


def _nothing_left(evidence: Evidence) -> Judged:
    seen, asked = evidence.first(Step.LEFTOVERS), evidence.first(Step.TERMINATE)
    if seen is None or asked is None:
        return _missing(Step.LEFTOVERS)
    return _by(
        seen.ok and seen.at - asked.at <= LEFT_S, f"{seen.answer}, {seen.at - asked.at:.0f} s after the termination"
    )


def _codes(evidence: Evidence) -> Judged:
    launches = [each for each in evidence.seen if each.step.startswith("launch")]
    unknown = [each.answer for each in launches if "unknown code" in each.answer]
    if unknown:
        return _failed(unknown[0])
    return _held(f"{len(launches)} launches") if launches else _missing(Step.LAUNCH)


def _training(evidence: Evidence) -> Judged:
    seen = evidence.first(Step.TRAINING)
    return _missing(Step.TRAINING) if seen is None else _by(seen.ok, f"after {seen.took_s:.0f} s: {seen.answer}")


def _checkpoints(evidence: Evidence) -> Judged:
    """Only a run that was given a bucket tries it."""
    seen = evidence.first(Step.RESUMED)
    if seen is None:
        return _not_seen("run it with CHECKPOINTS=…" if evidence.first(Step.CHECKPOINT) is None else "it did not go on")
    return _by(seen.ok, seen.answer)


def _forced(evidence: Evidence) -> tuple[Seen | None, float | None, Instance | None]:
    """(the forced end, when a listing first showed it, the last words about the machine)."""
    seen = evidence.first(Step.FORCE)
    if seen is None or not seen.ok:
        return None, None, None
    sightings = [(at, each) for at, each in evidence.of(seen.machine) if at >= seen.at - seen.took_s]
    ending = {InstanceState.STOPPING, InstanceState.STOPPED, InstanceState.TERMINATED}
    at = next((at for at, each in sightings if each is None or each.state in ending or each.preempt_at), None)
    return seen, at, _last_words(evidence, seen.machine)


def _loss_seen(evidence: Evidence) -> Judged:
    seen, at, _ = _forced(evidence)
    if seen is None:
        return _missing(Step.FORCE)
    if at is None:
        return _failed(f"{seen.machine} was asked to end ({seen.answer}), and no listing showed it")
    limit_s = EVICTED_S[evidence.cloud] if evidence.preempts else LOSS_SEEN_S
    return _by(at - seen.at <= limit_s, f"{max(at - seen.at, 0.0):.1f} s after {seen.answer}")


def _preempted(evidence: Evidence) -> Judged:
    seen, _, last = _forced(evidence)
    if seen is None:
        return _missing(Step.FORCE)
    if not evidence.preempts:
        return _not_seen(f"the end was forced by {seen.answer}: no preemption")
    if last is None:
        return _failed(f"{seen.machine}: no listing said why it ended")
    if last.end_cause is EndCause.USER and evidence.first(Step.REPLACED) is not None:
        return _not_seen(f"{_words(last)}; the daemon had replaced it, and ended it before the cloud did")
    return _by(last.end_cause is EndCause.PREEMPTED, _words(last))


def _announced(evidence: Evidence) -> Judged:
    seen, _, _ = _forced(evidence)
    notice = evidence.first(Step.NOTICE)
    if seen is None:
        return _missing(Step.FORCE)
    if not evidence.preempts:
        return _not_seen(f"the end was forced by {seen.answer}: it has no notice")
    over = _over_at(evidence, seen.machine)
    if notice is None:
        return _failed("the node's agent saw no notice") if over else _not_seen("it was not preempted")
    if _is_by_api(notice):
        return _not_seen(f"the API announced it before the machine did: {notice.answer}")
    early = over is None or notice.at < over + _LOOKS_S
    return _by(early, f"{notice.at - seen.at:.1f} s after {seen.answer}: {notice.answer}")


def _is_by_api(notice: Seen) -> bool:
    """As the planner names a notice that no agent has read."""
    return notice.answer.endswith(" API)")


def _over_at(evidence: Evidence, machine: str) -> float | None:
    forced = evidence.first(Step.FORCE)
    since = forced.at if forced else 0.0
    return next((at for at, each in evidence.of(machine) if at >= since and is_over(each)), None)


def _long_enough(evidence: Evidence) -> Judged:
    seen, _, _ = _forced(evidence)
    notice = evidence.first(Step.NOTICE)
    if seen is None or notice is None:
        return _missing(Step.NOTICE)
    over, replaced = _over_at(evidence, seen.machine), evidence.first(Step.REPLACED)
    if over is None:
        return _not_seen("its end was not listed")
    text = f"{over - notice.at:.0f} s from its event to the end; {evidence.notice_s:g} s are expected"
    if over - notice.at >= evidence.notice_s - _NOTICED_S:
        return _held(text)
    if replaced is not None and replaced.at - _LOOKS_S < over:
        return _not_seen(f"{text}; the daemon had replaced it, and may have ended it itself")
    return _failed(text)


def _reason(evidence: Evidence) -> Judged:
    first = _launched(evidence)
    if first is None or evidence.first(Step.TERMINATE) is None:
        return _missing(Step.TERMINATE)
    ended = [each for _, each in evidence.of(first.machine) if each and each.state is InstanceState.TERMINATED]
    if not ended:
        return _failed("it was in no listing as terminated")
    explained = next((each for each in ended if each.end_message and each.end_cause is not EndCause.UNKNOWN), None)
    return _held(_words(explained)) if explained else _failed(f"without a reason that we know: {_words(ended[-1])}")


def _kept_in_listing(evidence: Evidence) -> Judged:
    """That a machine which is in no listing any more is nevertheless reported as ended, from operations or the log."""
    first = _launched(evidence)
    if first is None or evidence.first(Step.TERMINATE) is None:
        return _missing(Step.TERMINATE)
    ended = [each for _, each in evidence.of(first.machine) if each and each.state is InstanceState.TERMINATED]
    return _held(_words(ended[0])) if ended else _failed("after its end, no entry named the machine")


def _preempts(evidence: Evidence) -> Judged:
    """Google: by the operation of its own that the call leads to. EC2: by its spot request."""
    seen, at, _ = _forced(evidence)
    if seen is None or not evidence.preempts:
        return _missing(Step.FORCE)
    if at is None:
        return _failed(f"{seen.answer} was answered, and nothing happened")
    return _held(f"{max(at - seen.at, 0.0):.1f} s after the call")


def _evicts(evidence: Evidence) -> Judged:
    """Azure: its log has the call itself, which reads as an eviction; only the machine's own notice shows one."""
    seen, at, _ = _forced(evidence)
    notice = evidence.first(Step.NOTICE)
    if seen is None or not evidence.preempts:
        return _missing(Step.FORCE)
    if notice is not None and not _is_by_api(notice):
        return _held(f"announced on the machine {notice.at - seen.at:.0f} s after the call: {notice.answer}")
    if notice is None and at is None:
        return _failed(f"{seen.answer} was answered, and nothing happened")
    return _not_seen("the log had the call before the machine announced an eviction, and the daemon ended it")


JUDGES: Mapping[str, Callable[[Evidence], Judged]] = {
    "A1": _same_token,
    "A2": _token_after_end,
    "A3": _listed_soon,
    "A4": _whole_tags,
    "A5": _goes_on,
    "A6": _found,
    "A7": _address,
    "A8": _login,
    "A9": _console,
    "A10": _clock,
    "A11": _ended_in_time,
    "A12": _twice,
    "A13": _by_user,
    "A14": _nothing_left,
    "A15": _codes,
    "A16": _training,
    "A17": _loss_seen,
    "A18": _preempted,
    "A19": _announced,
    "A20": _long_enough,
    "A24": _checkpoints,
    "E1": _reason,
    "E6": _preempts,
    "G1": _kept_in_listing,
    "G2": _preempts,
    "Z1": _kept_in_listing,
    "Z2": _evicts,
}
