"""What a job may use, and what happens when its steps hang or a node is slow: `limits` of the job file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from supervisor.spec_places import Strict

MAX_FINISH_MINUTES = 24 * 60
MAX_STOP_SECONDS = 2 * 3600
LIMITS_OF_MONEY = ("usd", "usd_per_month", "usd_per_hour", "usd_per_node_hour")
MIN_USD_PER_NODE_HOUR = 0.001  # EC2's lowest price of a spot request has to be above it


class LimitChanges(Strict):
    """What `spotsupctl limits` changes of a job that runs; None leaves a limit as it is."""

    hours: Annotated[float, Field(gt=0)] | None = None
    """The job is paused after training for this many hours in all. Time without a round of at least `min` nodes, such
    as waiting for capacity, does not count."""
    usd: Annotated[float, Field(gt=0)] | None = None
    """The job is paused once its nodes have cost this many US dollars, at the prices of the time. Nodes without a known
    price are not asked for; a job for which no price is known is refused."""
    usd_per_month: Annotated[float, Field(gt=0)] | None = None
    """As `usd`, of what its nodes cost in one month (UTC). With the next month it goes on by itself."""
    usd_per_hour: Annotated[float, Field(gt=0)] | None = None
    """No node is asked for that would bring the job above this many US dollars per hour, or whose price is unknown; a
    job for which no price is known is refused. A spot price that rises later ends no node. Leave room for one more:
    without it one that is announced to be taken is replaced only once it has left."""
    usd_per_node_hour: Annotated[float, Field(gt=MIN_USD_PER_NODE_HOUR)] | None = None
    """No node is asked for that costs more than this many US dollars per hour, or whose price is unknown; a job for
    which no price is known is refused. It goes with the request to clouds that take it for spot machines, which then
    take a node whose price rises above it, as any preemption."""
    app_failures: Annotated[int, Field(ge=0, le=1000)] | None = None


class Limits(LimitChanges):
    """What the job may use. `spotsupctl limits` shows how much is used, and changes limits while the job runs.

    People are warned when 80 % of `hours`, or 50 % and 80 % of `usd` or `usd_per_month`, are used. A job that reaches
    one checkpoints on all nodes at the same step, releases its machines and is paused; raising the limit lets it go on.
    """

    app_failures: Annotated[int, Field(ge=0, le=1000)] = 3
    """The job fails when its program failed more often than this. Preemptions and lost nodes never count."""
    finish_minutes: Annotated[float, Field(gt=0, le=MAX_FINISH_MINUTES)] = 2
    """Once a rank has ended well, the others that stand still are ended after this time: they use no processor, and
    neither read, write, send nor receive. The job ends as the ranks that have ended say. While ranks work on for
    longer, nodes whose ranks have all ended are released, except the one with rank 0."""
    stop_seconds: Annotated[float, Field(gt=0, le=MAX_STOP_SECONDS)] | None = None
    """How long a program that catches SIGTERM, and has no Session, may take to save and to end when its round ends in
    order; for so long before its machine is taken it gets SIGTERM. Without it a node leaves as soon as there is a
    notice, and the program has the whole notice to save."""
    hang: Literal["alert", "restart"] = "alert"
    """What happens when no rank completes a step for ten times its slow steps, and 5 minutes: an alert with stacks in
    the logs, or also a new round, at most three times a day. For programs with a Session only."""

    slow: Literal["tell", "replace"] = "tell"
    """What happens when a node has worked 1.3 times as long in each step as most for 10 minutes, so that all others
    wait for it: an alert, or also a replacement, first a new node and then one pause; at most one an hour, three a day.
    For programs with a Session only, and not under FSDP."""

    @property
    def of_money(self) -> bool:
        """True if any of them needs prices to be kept."""
        return any(getattr(self, each) is not None for each in LIMITS_OF_MONEY)
