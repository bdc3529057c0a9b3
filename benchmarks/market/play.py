"""One case of `make bench-market`, in a process of its own: prints what came of it as one line of JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog
from spotsup_simulator.replay import compare, oracle
from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.ledger import HOUR_S, Result
from spotsup_simulator.replay.losses import losses
from spotsup_simulator.replay.recording import Recording, read

from benchmarks.market import deadlines, knobs, together
from benchmarks.market.cases import VARIANTS, Case
from supervisor.errors import UsageError
from supervisor.spec import JobSpec, parse_spec


def recording_of(case: Case, traces: Path, seed: int) -> Recording:
    """Raises UsageError where there is none."""
    found = read(traces / case.file, traces / case.prices if case.prices else None)
    if case.hours is not None:
        found = found.cut(case.begin_h * HOUR_S, (case.begin_h + case.hours) * HOUR_S)
    return VARIANTS[case.variant](found, seed) if case.variant else found


def job_of(case: Case) -> JobSpec:
    """With checkpoints: a job without them may not move. No storage is named, as the cloud is not a rented one."""
    nodes = {"min": case.low, "desired": case.desired, "max": case.desired}
    return parse_spec({"name": "job", "nodes": nodes, "run": "train.py"})


def play(case: Case, recording: Recording, seed: int) -> dict[str, Any]:
    """The daemon, the oracle, and the baselines of one case; and where the daemon lost what the oracle had."""
    costs, spec = Costs(), job_of(case)
    replay = compare.replayed(recording, spec, costs, seed, None)
    began = time.process_time()
    found = replay.run()
    cpu_s = time.process_time() - began
    best, course = oracle.course(recording, case.low, case.desired, costs, compare.WORTH_USD)
    results = [found, best, *(_others(recording, spec, costs, seed) if case.baselines else ())]
    return {
        "results": [asdict(result) | {"usd_per_useful_node_h": result.usd_per_useful_node_h} for result in results],
        "cpu_s": cpu_s,
        "losses": losses(replay, course),
    }


def _others(recording: Recording, spec: JobSpec, costs: Costs, seed: int) -> Iterator[Result]:
    return (each for each in compare.others(recording, spec, costs, seed, None) if each.policy != oracle.POLICY)


def main() -> int:
    """Exit status 1 and a sentence where the case cannot be played."""
    asked = json.loads(sys.argv[1])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    case, seed = Case(**asked["case"]), asked["seed"]
    try:
        recording = recording_of(case, Path(asked["traces"]), seed)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if case.knobs:
        found = knobs.play(recording, job_of(case), seed, case.knobs)
    elif case.deadline_h:
        found = deadlines.play(recording, seed, case.deadline_h)
    else:
        found = together.play(recording, seed, case.jobs) if case.jobs else play(case, recording, seed)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
