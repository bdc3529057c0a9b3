"""What it costs to ask a cloud for many machines at once, one call each: calls, and seconds until all are granted.

    python -m tests.clouds.asking aws gcp azure --machines 16 64 --call-s 1

By the daemon's threads and provisioners, against test clouds whose every call takes so long.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from provisioners.base import Launched
from supervisor.model import NodeRecord
from supervisor.planner.actions import Action, Launch, LaunchDone, Outcome
from supervisor.runtime.actor import LAUNCH_TIMEOUT_S, ThreadActor
from tests.clouds.storm import STORMS, storm_target
from tests.support.machines import request_at

LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of the requests of one plan."""

    granted: int
    calls: int
    wall_s: float


def asked(cloud: str, machines: int, call_s: float) -> Cost:
    """Ask for so many machines of one offer at once, as the daemon does with the launches of one plan."""
    with storm_target(cloud) as target:
        offer, test_cloud = target.request("offer", random.Random(1)).offer, target.cloud
        launch = target.provisioner.launch
        launch(request_at(offer, "first"), LAUNCH_TIMEOUT_S)  # imports, and tokens of access
        test_cloud.calls.clear()
        test_cloud.call_s = call_s
        ended = threading.Semaphore(0)

        def perform(action: Action) -> Outcome:
            assert isinstance(action, Launch)
            return LaunchDone(action.node.id, offer, launch(request_at(offer, action.node.id), LAUNCH_TIMEOUT_S))

        actor = ThreadActor(perform, ended.release)
        began = time.monotonic()
        for number in range(machines):
            name = f"job-abcde-{number}"
            actor.start(Launch(NodeRecord(name, "job", name, offer, 0.0)))
        for _ in range(machines):
            assert ended.acquire(timeout=LIMIT_S), f"{cloud} did not answer all within {LIMIT_S:g} s"
        wall_s = time.monotonic() - began
        outcomes = [outcome for _, outcome in actor.collect()]
        granted = sum(isinstance(each, LaunchDone) and isinstance(each.outcome, Launched) for each in outcomes)
        return Cost(granted, len(test_cloud.calls), wall_s)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="tests.clouds.asking", description=__doc__)
    parser.add_argument("clouds", nargs="*", default=sorted(STORMS))
    parser.add_argument("--machines", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--call-s", type=float, default=1.0)
    given = parser.parse_args(arguments)
    print("| cloud | machines | calls | seconds |\n|---|---|---|---|")
    for cloud in given.clouds:
        for machines in given.machines:
            cost = asked(cloud, machines, given.call_s)
            assert cost.granted == machines, cost
            print(f"| {cloud} | {machines} | {cost.calls} | {cost.wall_s:.1f} |")


if __name__ == "__main__":
    main()
