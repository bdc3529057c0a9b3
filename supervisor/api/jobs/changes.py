"""What users' commands make of a job's record, and when they are refused. Pure."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from spotsup_trainer.objects import url as urls

from supervisor.access import Action, Caller, refusal
from supervisor.budget import BUDGET, USER_BUDGET
from supervisor.errors import CommandRefusedError, ForbiddenError, PreconditionError, UsageError
from supervisor.features.limits.rule import reached
from supervisor.features.pause.record import PauseRecord
from supervisor.features.queue.rule import PRIORITY
from supervisor.market.offers import PRICE_REMEDY
from supervisor.market.prices import named
from supervisor.model import WAITING_NODE_STATES, JobRecord, JobState, NodeState
from supervisor.planner.world import JobView
from supervisor.spec import NO_CHECKPOINTS, JobSpec, check_nodes
from supervisor.spec_limits import LIMITS_OF_MONEY, LimitChanges
from supervisor.validation import first_error

MAX_NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Terms:
    """Who asks for a change, and what they saw before. The defaults let everything pass."""

    caller: Caller | None = None
    # An If-Match header: ETags, or `*`.
    if_match: str = ""

    def check(self, job: JobRecord) -> None:
        """Raise ForbiddenError, and PreconditionError if the job's numbers or limits were changed since."""
        why = refusal(self.caller, Action.CHANGE, job.owner) if self.caller else ""
        if why:
            raise ForbiddenError(why)
        if self.if_match and self.if_match != "*" and etag(job) not in self.if_match.replace(" ", "").split(","):
            raise PreconditionError(
                f"the numbers or limits of {job.name} were changed meanwhile, it has {numbers_of(job)}: look again, "
                "then repeat the command"
            )


def etag(job: JobRecord) -> str:
    """Names what users may change of a job, and not how it goes on: it stays while nodes come and go."""
    numbers = (job.uid, job.desired_nodes, job.min_nodes, job.max_nodes, job.spare_nodes, job.spec.limits)
    return f'"{hashlib.sha256(repr(numbers).encode()).hexdigest()[:16]}"'


@dataclass(frozen=True, slots=True)
class Scale:
    """What `spotsupctl scale` changes; None leaves a number as it is."""

    desired: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    spares: int | None = None


def scaled_job(job: JobRecord, scale: Scale) -> JobRecord:
    """Return the job with new numbers. Raises CommandRefusedError if they do not fit together, or its kind."""
    desired = job.desired_nodes if scale.desired is None else scale.desired
    min_nodes = job.min_nodes if scale.min_nodes is None else scale.min_nodes
    max_nodes = job.max_nodes if scale.max_nodes is None else scale.max_nodes
    spares = job.spare_nodes if scale.spares is None else scale.spares
    if job.spec.kind == "data" and (desired, max_nodes, spares) != (1, 1, 0):
        raise CommandRefusedError(
            f"cannot scale {job.name}: a data job is one node; submit several, each with a part of the work"
        )
    try:
        check_nodes(min_nodes, desired, max_nodes, spares, job.spec.nodes.multiple_of)
    except ValueError as error:
        hint = " (--min and --max change the bounds)" if scale.desired is not None else ""
        raise CommandRefusedError(f"cannot scale {job.name}: {error}{hint}") from error
    return replace(job, desired_nodes=desired, min_nodes=min_nodes, max_nodes=max_nodes, spare_nodes=spares)


def numbers_of(job: JobRecord) -> str:
    """Return how many nodes it wants, for people."""
    spares = f", spares {job.spare_nodes}" if job.spare_nodes else ""
    nodes = "1 node" if job.desired_nodes == 1 else f"{job.desired_nodes} nodes"
    return f"{nodes} (min {job.min_nodes}, max {job.max_nodes}{spares})"


def limit_changes(given: Mapping[str, Any]) -> LimitChanges:
    """Return the changes that a request asks for. Raises UsageError: one sentence that names the limit."""
    try:
        return LimitChanges.model_validate(given)
    except ValidationError as error:
        raise UsageError(first_error(error, "limits", LimitChanges)) from error


def check_priced(view: JobView, changes: LimitChanges) -> None:
    """Raise CommandRefusedError for a first limit of money of a job whose nodes have no known price (P13)."""
    wanted = any(getattr(changes, each) is not None for each in LIMITS_OF_MONEY)
    if view.record.spec.limits.of_money or not wanted:
        return
    unpriced = [node.offer for node in view.nodes.values() if node.offer.usd_per_hour is None]
    if unpriced:
        raise CommandRefusedError(
            f"{view.record.name} can have no limit of money: no price is known for {named(unpriced)}, which it has or "
            f"had; {PRICE_REMEDY}"
        )


def limited_job(view: JobView, changes: LimitChanges, now: float) -> JobRecord:
    """Return the job with new limits; resumed where it was paused for one, and none is reached any more."""
    job = view.record
    limits = job.spec.limits.model_copy(update=changes.model_dump(exclude_none=True))
    job = replace(job, spec=job.spec.model_copy(update={"limits": limits}))
    if job.pause.by in {"", PRIORITY, BUDGET, USER_BUDGET}:
        return job
    over = reached(job, view.nodes.values(), now)
    if over is None:
        return replace(job, pause=PauseRecord())
    reason = over.reason(job.name) if job.state is JobState.PAUSED else job.reason
    return replace(job, reason=reason, pause=replace(job.pause, by=over.name))


def unreadable_by(job: JobRecord, spec: JobSpec, hosted: Collection[str]) -> str:
    """Return why a new job could not read the checkpoints of an earlier one, or ""."""
    if "data" in (job.spec.kind, spec.kind):
        return "data jobs have no checkpoints"
    if spec.checkpoints == NO_CHECKPOINTS:
        return "the new job says `checkpoints: none`, and would read none either: name a place"
    path, here = job.checkpoint_path, job.spec.placement.cloud
    if not path:
        return "it said `checkpoints: none`, so it made none"
    if urls.is_url(path):
        return ""
    if not path.startswith(("/", "~")):
        if here not in hosted:
            return "it had no shared `storage`, so its checkpoints ended with its machines"
        return "" if spec.placement.cloud == here else f"its checkpoints are on the cloud {here}"
    mounts = [each for each in job.spec.storage if f"{path}/".startswith(f"{each.mount}/")]
    known = [each.model_copy(update={"mode": "rw"}) for each in spec.storage]
    missing = [each.mount for each in mounts if each.model_copy(update={"mode": "rw"}) not in known]
    return f"its checkpoints are below {missing[0]}: give this job the same entry of `storage`" if missing else ""


def alternatives(name: str, known: Sequence[str], what: str) -> str:
    """Return what a user may have meant: similar names, else the first few."""
    if close := difflib.get_close_matches(name, known):
        return f"did you mean {' or '.join(close)}?"
    more = f" and {len(known) - MAX_NAMES_SHOWN} more" if len(known) > MAX_NAMES_SHOWN else ""
    return f"{what}: {', '.join(known[:MAX_NAMES_SHOWN]) or 'none'}{more}"


def active_nodes(view: JobView) -> int:
    """Return how many of its nodes are not gone. The machines that wait for the next job are no obstacle to it."""
    return sum(node.state is not NodeState.WARM for node in view.billed)


def waits_warm(view: JobView, node: str) -> bool:
    """True if it is the machine of an ended job, which waits for the next one."""
    return node in view.nodes and view.nodes[node].state in WAITING_NODE_STATES
