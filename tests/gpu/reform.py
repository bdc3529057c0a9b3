"""The check `kill-and-re-form`: launchers over a real etcd, ranks that are lost, and ranks that join."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from tests.e2e.launching import Nodes, nodes
from tests.gpu.place import ROOT, Facts, Place, etcd, etcd_program, ran, until
from tests.gpu.ranks import backend_of_several, host_of

BEFORE, BETWEEN, AFTER = 40, 20, 30  # steps
TRAIN = Path(__file__).with_name("train.py")


def reform(place: Place) -> Facts:
    """Two launchers train; one is killed with all its processes; the other goes on from the checkpoint; a third joins,
    freezes, and joins again when it thaws. The final weights are those of a run without interruption, and nothing is
    blamed on the program."""
    etcd_program()
    backend = backend_of_several(place)
    weights = place.folder / "weights.pt"
    program = {"step_s": "0.05", "backend": backend, "device": place.device, "weights": str(weights)}
    environ = {"PYTHONPATH": f"{ROOT}:{ROOT / 'trainer'}"}
    place.note("backend", backend)
    with (
        etcd(place.folder) as endpoint,
        nodes(endpoint, place.folder, script=TRAIN, program=program) as job,
    ):
        job.hint("a", "b", minimum=2)
        for number, node in enumerate(("a", "b")):
            _start(job, place, node, number, environ)
        job.stepping(2, timeout_s=place.left_s())
        job.hint("a", "b")
        until(f"{BEFORE} steps", lambda: _last(job) >= BEFORE, place.left_s())

        # nothing is announced before: the lease has to end, and whatever a's worker does until then is its own
        killed_at = time.time()
        job.kill("b")
        one = _alone(job, place, 1, killed_at, "SIGKILL of b")

        job.hint("a", "c", minimum=2)
        _start(job, place, "c", 1, environ)
        two = job.stepping(2, after_round=one, timeout_s=place.left_s())
        place.note("pause when a node joined, s", round(_pause(job, int(two["round"])), 2))
        job.hint("a", "c")
        start = _last(job)
        until(f"{BETWEEN} further steps", lambda: _last(job) >= start + BETWEEN, place.left_s())

        frozen, frozen_at = job.processes("c"), time.time()
        _signal_all(frozen, signal.SIGSTOP)
        three = _alone(job, place, int(two["round"]), frozen_at, "SIGSTOP of c")
        _signal_all(frozen, signal.SIGCONT)
        four = job.stepping(2, after_round=three, timeout_s=place.left_s())
        place.note("pause when it joined again, s", round(_pause(job, int(four["round"])), 2))
        last = _last(job) + AFTER
        job.end_file.with_suffix(".new").write_text(str(last))
        job.end_file.with_suffix(".new").replace(job.end_file)
        codes = [job.exit_code(node, place.left_s()) for node in ("a", "c")]
        place.note("why a's rounds ended", "; ".join(_reasons(job.log("a").read_text())))
        place.note("the launchers' exit codes", codes)
        result = job.result()
        # it allows no failure of the program's own: one that is blamed on it ends it
        assert codes == [0, 0], f"{result}\n{job.log('a').read_text()[-2000:]}"
    alone = place.folder / "alone.pt"
    program |= {"step_s": "0", "events": str(place.folder / "events.alone"), "weights": str(alone)}
    arguments = [f"{key}={value}" for key, value in {**program, "until": job.end_file}.items()]
    ran([sys.executable, str(TRAIN), *arguments], place.left_s(), {**environ, **_gpu_of(place, 0)})
    pairs = zip(torch.load(weights), torch.load(alone), strict=True)
    furthest = max(float((one - two).abs().max()) for one, two in pairs)
    assert furthest < 1e-6, f"weights differ by {furthest:g} from those of a run without interruption"
    return {"steps": last, "largest difference of a weight": f"{furthest:.1e}"}


def _start(job: Nodes, place: Place, node: str, number: int, environ: Mapping[str, str]) -> None:
    job.env = {**_gpu_of(place, number), **host_of(place, number), **environ}
    job.start(node)


def _gpu_of(place: Place, number: int) -> dict[str, str]:
    """Return the environment of a node: where there are two GPUs, each node has one of its own."""
    return {"CUDA_VISIBLE_DEVICES": str(number)} if place.gpus >= 2 else {}


def _signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def _pause(job: Nodes, number: int) -> float:
    """Return the seconds from the last step of the round before to the first step of this one."""
    times: dict[int, list[float]] = {}
    for each in job.events("step"):
        times.setdefault(int(each["round"]), []).append(float(each["at"]))
    return min(times[number]) - max(times[max(before for before in times if before < number)])


def _last(job: Nodes) -> int:
    return max((int(each["step"]) for each in job.events("step")), default=0)


def _alone(job: Nodes, place: Place, after_round: int, since: float, what: str) -> int:
    """Wait for the first step that `a` does alone, and note when it was, and what its launcher reports of the worker
    that it had: one that failed by itself, or none. Return the round."""
    steps: list[dict[str, object]] = []
    reported: list[str] = []

    def steps_alone() -> bool:
        member = job.member("a")
        if member and member.failure:
            why = member.failure.message.strip().splitlines() or ["no message"]
            reported.append(f"it failed by itself, exit code {member.failure.exit_code}: {why[-1][:300]}")
        steps.extend(each for each in job.events("step", world=1) if each["round"] > after_round)
        return steps != []

    try:
        until(f"a steps alone after {what}", steps_alone, place.left_s())
    finally:
        place.note(f"a's worker after {what}", (reported or ["its launcher ended it"])[0])
    place.note(f"from {what} to the next step, s (lease of 2 s)", round(float(str(steps[0]["at"])) - since, 2))
    return int(str(steps[0]["round"]))


def _reasons(log: str) -> list[str]:
    """Return why each round ended, as the launcher says it."""
    return re.findall(r"round \d+: stopping the workers: (.*)", log)
