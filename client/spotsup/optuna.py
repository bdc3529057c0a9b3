"""Optuna studies whose trials are jobs: `spotsup-client[optuna]`. Optuna runs here, the jobs on nodes."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from optuna.trial import TrialState

from spotsup.client import Client
from spotsup.errors import SpotsupError, UsageError
from spotsup.job import Job, Status


def optimize(  # noqa: PLR0913 - what is set apart by name
    study: optuna.Study,
    client: Client,
    run: str,
    space: Mapping[str, optuna.distributions.BaseDistribution],
    *,
    name: str,
    trials: int,
    parallel: int = 1,
    metric: str = "loss",
    poll_s: float = 10.0,
    wait: Callable[[float], object] = time.sleep,
    **submit: Any,
) -> None:
    """Submit `trials` jobs, `parallel` at a time, with the parameters that the study suggests.

    Each is `run` with an argument for each name of `space`, and is named `name` with its trial's number. Its value is
    the last one that `Session.report` gave for `metric`, or its loss; values on the way go to the study's pruner, which
    may end it. One that fails, or reports nothing, is a failed trial. `submit`: more for `Client.submit`.

    After Ctrl-C the jobs go on, and their trials stay open in the study. Raises SpotsupError.
    """
    if trials < 1 or parallel < 1:
        raise UsageError(
            "an optimization has at least 1 trial, and 1 at a time: give `trials` and `parallel` of 1 or more"
        )
    running: dict[int, tuple[optuna.Trial, Job]] = {}
    asked = 0
    while running or asked < trials:
        while asked < trials and len(running) < parallel:
            trial = study.ask(dict(space))
            asked += 1
            running[trial.number] = trial, _submitted(study, trial, client, run, f"{name}-{trial.number}", submit)
        for number, (trial, job) in list(running.items()):
            if _advance(study, trial, job, metric):
                del running[number]
        if running:
            wait(poll_s)


def _submitted(
    study: optuna.Study, trial: optuna.Trial, client: Client, run: str, name: str, submit: Mapping[str, Any]
) -> Job:
    arguments = " ".join(f"--{key} {shlex.quote(str(value))}" for key, value in trial.params.items())
    try:
        job = client.submit(f"{run} {arguments}", name=name, **submit)
    except SpotsupError:
        study.tell(trial, state=TrialState.FAIL)
        raise
    trial.set_user_attr("job", job.name)
    return job


def _advance(study: optuna.Study, trial: optuna.Trial, job: Job, metric: str) -> bool:
    """Tell the study how a job is; whether its trial is over."""
    status = job.status()
    value = _value(status, metric)
    pruned = trial.user_attrs.get("pruned", False)
    if status.ended:
        if pruned:
            study.tell(trial, state=TrialState.PRUNED)
        elif status.state == "succeeded" and value is not None:
            study.tell(trial, value)
        else:
            study.tell(trial, state=TrialState.FAIL)
        return True
    if value is not None and not pruned:
        trial.report(value, status.step)  # a step that was reported before keeps its first value
        if trial.should_prune():
            trial.set_user_attr("pruned", True)
            job.cancel()
    return False


def _value(status: Status, metric: str) -> float | None:
    found = status.loss if metric == "loss" else status.raw.get("metrics", {}).get(metric)
    return None if found is None else float(found)
