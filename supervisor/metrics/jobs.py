"""Samples of each live job. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from supervisor.features.limits.rule import trained_s
from supervisor.metrics.picture import JOB_LABEL, Picture
from supervisor.model import ENDED_JOB_STATES, JobState, NodeState
from supervisor.planner.world import JobView

Value: TypeAlias = Callable[[JobView], float | None]
_LIVE = tuple(state for state in JobState if state not in ENDED_JOB_STATES)


def _training(view: JobView) -> float:
    return sum(node.state is NodeState.MEMBER for node in view.nodes.values())


def _checkpoints_fail(view: JobView) -> float:
    reported = view.progress.checkpoint_problem if view.progress else ""
    return float(bool(reported or view.record.checkpoints.problem))


def _of_progress(name: str) -> Value:
    return lambda view: getattr(view.progress, name) if view.progress else None


def _of_round(name: str) -> Value:
    return lambda view: getattr(view.round, name) if view.round else 0


def _of_record(name: str) -> Value:
    return lambda view: float(getattr(view.record, name))


def _gpu_use(view: JobView) -> float | None:
    percent = view.progress.gpu_percent if view.progress else None
    return None if percent is None else min(max(percent / 100, 0.0), 1.0)


# Name below `spotsup_job_`, what it says, and its value of a job; None: no sample.
_GAUGES: tuple[tuple[str, str, Value], ...] = (
    ("nodes_training", "Nodes in the round.", _training),
    ("nodes_min", "Below so many nodes the job does not train.", _of_record("min_nodes")),
    ("nodes_desired", "So many nodes the job wants.", _of_record("desired_nodes")),
    ("round", "Number of the round; it grows with each change of membership.", _of_round("number")),
    ("step", "The last completed step.", _of_progress("step")),
    ("loss", "The loss, as the program reports it.", _of_progress("loss")),
    ("gpu_use_ratio", "How busy the GPUs of the node with rank 0 are.", _gpu_use),
    ("last_step_timestamp_seconds", "When the last step was completed.", _of_progress("at")),
    ("checkpoint_step", "The step of the newest checkpoint.", _of_progress("checkpoint_step")),
    ("checkpoint_seconds", "What 95 % of checkpoints took at most.", _of_progress("checkpoint_p95_s")),
    ("checkpoint_failing", "1 while checkpoints are not being written.", _checkpoints_fail),
    ("hung", "1 while its steps hang.", lambda view: float(bool(view.record.hang.since))),
    ("app_failures", "Failures of the program that count towards its limit.", _of_round("app_failures")),
    ("bootstrap_failures", "Nodes in a row that could not be prepared.", lambda view: view.record.bootstraps.failures),
    ("submitted_timestamp_seconds", "When it was submitted.", _of_record("submitted_at")),
)


def job_families(picture: Picture) -> Iterator[Metric]:
    """Yield one sample of each kind for each live job."""
    views = picture.live_jobs
    states = GaugeMetricFamily("spotsup_job_state", "1 for the state that a job has.", labels=[JOB_LABEL, "state"])
    for view in views:
        for state in _LIVE:
            states.add_metric([view.name, str(state)], float(view.record.state is state))
    yield states
    for name, text, value in _GAUGES:
        family = GaugeMetricFamily(f"spotsup_job_{name}", text, labels=[JOB_LABEL])
        for view in views:
            found = value(view)
            if found is not None:
                family.add_metric([view.name], found)
        yield family
    trained = GaugeMetricFamily(
        "spotsup_job_trained_seconds", "For how long it had enough nodes in a round.", labels=[JOB_LABEL]
    )
    for view in views:
        trained.add_metric([view.name], trained_s(view.record, picture.now))
    yield trained
