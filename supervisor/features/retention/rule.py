"""Which ended jobs may be deleted, and which are to be by `[retention]`. Pure.

Once a job's machines are gone nothing writes for it any more, so one transaction deletes all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from supervisor.features.retention.record import RetentionRules
from supervisor.model import NodeState
from supervisor.new_job import uid_of
from supervisor.planner.world import JobView
from supervisor.sweep import SweepRecord

DAY_S = 86400.0
MAX_AT_ONCE = 50  # deletions of one look: a clock that is years ahead is noticed before it has deleted much


def sweeps_by_member(sweeps: Iterable[SweepRecord]) -> Mapping[str, str]:
    """Return the names of sweeps that are not over, by the uids of their jobs: they read how those have ended."""
    return {
        uid_of(sweep.submission(member)): sweep.name for sweep in sweeps if not sweep.over for member in sweep.members
    }


def kept_because(view: JobView, needed_by: Mapping[str, str]) -> str:
    """Return why a job cannot be deleted now, and what to do; "" if it can. `needed_by`: of `sweeps_by_member`."""
    job, name = view.record, view.name
    if view.past:
        return f"{name} is an earlier run of {job.name}, and is deleted with it: `spotsupctl delete {job.name}`"
    if not job.ended:
        return f"job {name} is {job.state}: `spotsupctl cancel {name}`, and delete it once it has ended"
    if job.is_renewed:
        return f"the schedule of job {name} submits it again: `spotsupctl cancel {name}` ends that"
    if warm := [node.id for node in view.billed if node.state is NodeState.WARM]:
        return f"a machine of job {name} waits for the next job: `spotsupctl drain {' '.join(sorted(warm))}` lets it go"
    if view.billed:
        count = "1 machine" if len(view.billed) == 1 else f"{len(view.billed)} machines"
        return f"job {name} has ended but still releases {count}: try again in a moment"
    if sweep := needed_by.get(job.uid):
        return (
            f"the sweep {sweep} goes on and compares job {name}: `spotsupctl sweep cancel {sweep}`, or wait for its end"
        )
    return ""


def to_delete(
    views: Collection[JobView], needed_by: Mapping[str, str], rules: RetentionRules, now: float
) -> list[JobView]:
    """Return the jobs that are kept for too long, or are too many, the oldest first; at most MAX_AT_ONCE."""
    ended = sorted((each for each in views if not kept_because(each, needed_by)), key=lambda each: each.record.ended_at)
    limit_s = rules.ended_jobs_days * DAY_S
    old = sum(now - each.record.ended_at > limit_s for each in ended) if limit_s else 0
    too_many = len(ended) - rules.ended_jobs if rules.ended_jobs else 0
    return ended[: min(max(old, too_many, 0), MAX_AT_ONCE)]
