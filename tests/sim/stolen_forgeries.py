"""What a stolen node writes: each is tried again and again. docs/verification/stolen-node.md has a row of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spotsup_trainer.wire import (
    AgentStatus,
    Done,
    Ended,
    Failure,
    Health,
    Member,
    Notice,
    Pause,
    Pauses,
    Progress,
    Result,
    Round,
    RoundMember,
    encode,
)

from tests.sim.promises import jobs_of
from tests.sim.stolen import Forgery, Thief

BIG = 2**53
FAR = 9e10  # as far as a message may say
MUCH = 1e15  # as much as a message may say
UGLY = "\x1b[2J\x1b]52;c;eA==\x07\u202e<!channel> <script>\njob ann was cancelled" + "x" * 500
NAMES = ("../../../jobs/ann", "ann-rag9f-1", "a/b", "\x1b[2J", "\u202e", "", "ann\ncancelled", "x" * 4000)


def _round(thief: Thief) -> Round:
    return jobs_of(thief.world)[thief.job].round or Round(1, (), thief.now)


def _agent(thief: Thief, node: str) -> None:
    thief.write(thief.keys.agent(thief.job, node), AgentStatus(node, "boot", 1, 0.0, UGLY))


def _member(thief: Thief, node: str, state: Any = "waiting", **more: Any) -> None:
    incarnation = _round(thief).incarnations.get(node, "i")
    thief.write(thief.keys.member(thief.job, node), Member(node, incarnation, "10.0.0.1", 1, state, **more))


def _notice(thief: Thief, node: str, deadline: float) -> None:
    thief.write(thief.keys.notice(thief.job, node), Notice(node, deadline, thief.now, "local API"))


def _unhealthy(thief: Thief, node: str) -> None:
    thief.write(thief.keys.health(thief.job, node), Health(node, False, thief.now, UGLY, 79, fatal=True))


def _ended(thief: Thief, node: str, outcome: Any) -> None:
    thief.write(thief.keys.ended(thief.job, node), Ended(node, outcome, 1, UGLY, FAR))


def _progress(thief: Thief, **more: Any) -> None:
    known = Progress(_round(thief).number, 5, thief.now, thief.now)
    thief.write(thief.keys.progress(thief.job), replace(known, **more))


def notices_far_ahead(thief: Thief) -> None:
    for node in thief.nodes:
        _notice(thief, node, FAR)


def notices_of_the_past(thief: Thief) -> None:
    for node in thief.nodes:
        _notice(thief, node, 0.0)


def notices_of_nodes_to_come(thief: Thief) -> None:
    for node in thief.ahead:
        _notice(thief, node, FAR)


def notices_of_others(thief: Thief) -> None:
    for node in (*Thief(thief.world, "ann").nodes, *NAMES):
        _notice(thief, node, FAR)
        thief.write(thief.keys.notice("ann", node), Notice(node, FAR, thief.now, "local API"))
        thief.write(thief.keys.notice(thief.job, thief.nodes[0]), Notice(node, FAR, thief.now, "local API"))


def all_gpus_gone(thief: Thief) -> None:
    for node in thief.nodes:
        _unhealthy(thief, node)


def gpus_gone_one_by_one(thief: Thief) -> None:
    if thief.tries % 3 == 0 and thief.tries < 9:
        _unhealthy(thief, thief.nodes[-1])


def ready_and_lost_before_prepared(thief: Thief) -> None:
    for node in thief.ahead:
        _agent(thief, node)
        _member(thief, node)
        _ended(thief, node, "failure")


def launchers_that_left(thief: Thief) -> None:
    for node in thief.nodes:
        _ended(thief, node, "left")


def launchers_that_failed_in_time(thief: Thief) -> None:
    for node in thief.ahead:
        _ended(thief, node, "failure")


def agents_of_nobody(thief: Thief) -> None:
    for number in range(300 if thief.tries == 0 else 0):
        _agent(thief, f"{thief.job}-zzzzz-{number}")
    for node in thief.nodes:
        _unhealthy(thief, node)


def agents_of_all_machines(thief: Thief) -> None:
    for machine in list(thief.world.cloud.machines.values()):
        _agent(thief, machine.instance.node)


def members_that_complain(thief: Thief) -> None:
    hangs = thief.now - 99.0 if thief.tries % 2 else 0.0
    for node in thief.nodes:
        _member(
            thief, node, "running", round=_round(thief).number, problem=f"{thief.tries} {UGLY}", stalled_since=hangs
        )


def members_that_fail(thief: Thief) -> None:
    failure = Failure(BIG, -BIG, BIG, UGLY, FAR, MUCH, stepped=True)
    for node in thief.nodes:
        _member(thief, node, round=BIG, failure=failure, unhealthy=UGLY, stalled_since=FAR, checkpoints=-BIG)


def progress_backwards(thief: Thief) -> None:
    _progress(thief, step=-thief.tries, samples=-BIG, epoch=-1, at=0.0, first_step_at=FAR, first_step=BIG)


def progress_far_ahead(thief: Thief) -> None:
    numbers = {"step": BIG, "samples": BIG, "epoch": BIG, "round": BIG, "checkpoint_step": BIG}
    metrics = {f"{name}{thief.tries}": 1e308 for name in NAMES}
    _progress(thief, **numbers, at=FAR, fraction=MUCH, loss=1e308, gpu_percent=1e308, text=UGLY, metrics=metrics)


def checkpoints_without_end(thief: Thief) -> None:
    times = {"checkpoint_p50_s": MUCH, "checkpoint_p95_s": MUCH / (1 + thief.tries % 2), "step_s": MUCH}
    _progress(thief, **times, checkpoint_every_s=-MUCH, checkpoint_problem=f"{thief.tries} {UGLY}")


def pauses_that_cannot_be(thief: Thief) -> None:
    pauses = tuple(Pause(number, FAR, MUCH, -1.0, 1e308, own_bytes=BIG, steps_again=-BIG) for number in range(200))
    thief.write(thief.keys.pauses(thief.job), Pauses(UGLY, pauses))


def round_of_strangers(thief: Thief) -> None:
    members = tuple(RoundMember(f"ann-rag9f-{number}", "i", "a", 1) for number in range(500))
    thief.write(thief.keys.round(thief.job), Round(BIG, members, FAR, UGLY, BIG, Failure(BIG, 0, 0, UGLY)))


def another_round_each_time(thief: Thief) -> None:
    node = thief.nodes[0]
    members = (RoundMember(node, "i", "a", 1),) * 3
    thief.write(thief.keys.round(thief.job), Round(50 + thief.tries, members, thief.now))
    thief.write(thief.keys.done(thief.job, node), Done(node, "i", 50 + thief.tries, FAR))


def all_are_done(thief: Thief) -> None:
    current = _round(thief)
    for node, incarnation in current.incarnations.items():
        thief.write(thief.keys.done(thief.job, node), Done(node, incarnation, current.number, FAR))


def success(thief: Thief) -> None:
    thief.write(thief.keys.result(thief.job), Result("success", UGLY, BIG, UGLY))


def failure(thief: Thief) -> None:
    thief.write(thief.keys.result(thief.job), Result("failure", UGLY, -BIG, UGLY))


def silence_that_comes_and_goes(thief: Thief) -> None:
    for machine in thief.machines:
        machine.cut = bool(thief.tries // 3 % 2)


def silence_that_works(thief: Thief) -> None:
    for machine in thief.machines:
        machine.cut, machine.ssh = True, "well"


def silence_that_hangs(thief: Thief) -> None:
    for machine in thief.machines:
        machine.cut, machine.ssh = True, "hangs"


def notices_and_silence(thief: Thief) -> None:
    notices_far_ahead(thief)
    silence_that_works(thief)
    for node in thief.nodes:  # their keys stay, under no lease
        _agent(thief, node)
        _member(thief, node)


def no_messages_at_all(thief: Thief) -> None:
    node = thief.nodes[0]
    for key in ("round", "result", "progress", "pauses", "ranktimes", f"member/{node}"):
        thief.write(thief.keys.run(thief.job) + key, b"[" * 200_000)
    for number in ("NaN", "-1", "1e400", "9" * 400, "null", '"soon"', "Infinity"):
        text = f'{{"node":"{node}","deadline":{number},"seen_at":1,"source":"aws"}}'
        thief.write(thief.keys.notice(thief.job, node), text.encode())
    thief.write(thief.keys.health(thief.job, node), b"\xff\xfe" * 100)


def names_of_all_kinds(thief: Thief) -> None:
    for name in NAMES:
        _agent(thief, name)
        _member(thief, name)
        thief.write(thief.keys.run(thief.job) + name, encode(Result("success", "", 1)))


def unreadable_keys_each_time(thief: Thief) -> None:
    for number in range(300):
        thief.write(thief.keys.agent(thief.job, f"n{number}"), str(thief.tries).encode())


def writes_without_pause(thief: Thief) -> None:
    for number in range(100):
        _progress(thief, step=number)


def keys_of_others(thief: Thief) -> None:
    keys, world = thief.keys, thief.keys.world
    for key in (keys.hint(thief.job), keys.tombstone("ann", "n"), f"{world}jobs/ann", f"{world}pause", "/", ""):
        thief.write(key, b"{}")


FORGERIES: Mapping[str, Forgery] = {
    each.__name__.replace("_", "-"): each
    for each in (
        notices_far_ahead,
        notices_of_the_past,
        notices_of_nodes_to_come,
        notices_of_others,
        notices_and_silence,
        all_gpus_gone,
        gpus_gone_one_by_one,
        ready_and_lost_before_prepared,
        launchers_that_left,
        launchers_that_failed_in_time,
        agents_of_nobody,
        agents_of_all_machines,
        members_that_complain,
        members_that_fail,
        progress_backwards,
        progress_far_ahead,
        checkpoints_without_end,
        pauses_that_cannot_be,
        round_of_strangers,
        another_round_each_time,
        all_are_done,
        success,
        failure,
        silence_that_comes_and_goes,
        silence_that_works,
        silence_that_hangs,
        no_messages_at_all,
        names_of_all_kinds,
        unreadable_keys_each_time,
        writes_without_pause,
        keys_of_others,
    )
}
