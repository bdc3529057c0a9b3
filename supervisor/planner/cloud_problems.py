"""What is wrong with a cloud, or between it and us: each is a problem of which people are told (problems.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from supervisor.events import EventKind
from supervisor.model import NodeRecord, NodeState
from supervisor.planner.sentences import named
from supervisor.planner.world import LeftoversView, Problem, VolatileState, World
from supervisor.starting_time import moment

UNLISTED_S = 300.0
# A termination takes a cloud minutes, with two listings that confirm it.
UNENDED_S = 600.0
# Removing a leftover is tried at each listing of leftovers.
UNREMOVED_S = 3600.0


def cloud_problems(world: World, volatile: VolatileState, now: float) -> Iterator[Problem]:
    """Yield the problems of all clouds."""
    yield from _denials(world, volatile)
    yield from _unlisted(world, volatile, now)
    yield from _silent_regions(world, volatile, now)
    yield from _doubted(world, volatile)
    yield from _unended(world, volatile, now)
    yield from _unremoved(volatile, now)
    yield from _leftovers_unlisted(world, volatile)
    yield from _unclear(world, volatile, now)
    yield from _not_configured(world)


def _denials(world: World, volatile: VolatileState) -> Iterator[Problem]:
    """Clouds that deny everything."""
    for cloud, denial in volatile.denials.items():
        yield Problem(
            EventKind.ACCESS_DENIED,
            cloud,
            denial.since,
            f"{cloud} denies spotsup's requests: {denial.message}. Until that is fixed what trains goes on, and no "
            "machine is launched, replaced or ended; then all goes on by itself",
            world.rules.denied_alert_s,
            over=f"{cloud} accepts spotsup's requests again",
            over_kind=EventKind.ACCESS_RESTORED,
        )


def _unlisted(world: World, volatile: VolatileState, now: float) -> Iterator[Problem]:
    """Clouds that do not answer which machines there are."""
    for cloud in world.clouds:
        view = volatile.cloud(cloud)
        since = max(view.listed_at, world.timers_paused_until)
        if cloud in volatile.denials or view.foreign or now - since < UNLISTED_S:
            continue
        yield Problem(
            EventKind.NOT_LISTED,
            cloud,
            since,
            f"{cloud} has not said since {moment(since)} which machines run: {view.error or 'no answer'}. Until it "
            "does, no silent node is replaced, and no machine is known to have ended; look at the cloud's status page "
            "and at `spotsupd check`",
            over=f"{cloud} says again which machines run",
        )


def _silent_regions(world: World, volatile: VolatileState, now: float) -> Iterator[Problem]:
    """Regions that do not answer which machines there are, while others of their cloud do."""
    for cloud in world.clouds:
        view = volatile.cloud(cloud)
        since = {region: max(each.listed_at, world.timers_paused_until) for region, each in view.silent.items()}
        late = sorted(region for region, at in since.items() if now - at >= UNLISTED_S)
        if not late:
            continue
        first = min(since[region] for region in late)
        where, why = named(late), view.silent[late[0]].error
        yield Problem(
            EventKind.NOT_LISTED,
            f"{cloud}-regions",
            first,
            f"{cloud} has not said since {moment(first)} which machines run in {where}: {why}. Until it does, no "
            "silent node there is replaced, and no machine there is known to have ended; other regions go on. Look at "
            "the cloud's status page and at `spotsupd check`",
            members=frozenset(late),
            over=f"{cloud} says again which machines run in each region",
        )


def _doubted(world: World, volatile: VolatileState) -> Iterator[Problem]:
    """Clouds whose listing lacks machines that work."""
    for cloud in world.clouds:
        view = volatile.cloud(cloud)
        if view.doubted:
            count = len(view.doubted)
            yield Problem(
                EventKind.LISTING_DOUBTED,
                cloud,
                view.listed_at,
                f"{cloud} does not list the machine{'s' * (count > 1)} of {count} node{'s' * (count > 1)} that "
                f"{'work' if count > 1 else 'works'} ({named(sorted(view.doubted))}): are its credentials, project, "
                "subscription and regions those of before? Until it lists them, nothing is launched for their jobs, "
                "and no machine of theirs is taken for ended",
                members=view.doubted,
                over=f"{cloud} lists all machines whose nodes work",
            )


class _Stuck(NamedTuple):
    """A machine that does not end."""

    id: str
    since: float
    error: str = ""  # why its cloud refuses to end it; "" where it does not
    usd_per_hour: float = 0.0  # 0 where it is not known


def _unended(world: World, volatile: VolatileState, now: float) -> Iterator[Problem]:
    """Machines that a cloud does not end, whether it refuses to or says that it does."""
    stuck: dict[str, list[_Stuck]] = {}
    for job in world.jobs.values():
        for node in job.terminating:
            since = max(node.state_since, world.timers_paused_until)
            view = volatile.cloud(node.offer.cloud)
            if now - since >= UNENDED_S and node.offer.cloud in world.clouds and not view.is_ending(node):
                found = _Stuck(node.instance_id, since, node.error, node.offer.usd_per_hour or 0.0)
                stuck.setdefault(node.offer.cloud, []).append(found)
    for cloud, view in volatile.clouds.items():
        for key in view.instances.keys() & volatile.sightings.keys():
            seen = volatile.sightings[key]
            if seen.ended_at and now - seen.ended_at >= UNENDED_S:
                stuck.setdefault(cloud, []).append(_Stuck(key, seen.ended_at))
    for cloud, machines in stuck.items():
        errors = sorted({each.error.splitlines()[0] for each in machines if each.error})
        why = errors[0] if errors else f"{cloud} accepts each request, and still lists them as running"
        since = min(each.since for each in machines)
        ids = frozenset(each.id for each in machines)
        usd = sum(each.usd_per_hour for each in machines)
        cost = f"${usd:.2f} an hour" if usd else "money"
        what = f"{len(ids)} machines of {cloud} do" if len(ids) > 1 else f"1 machine of {cloud} does"
        yield Problem(
            EventKind.NOT_ENDED,
            cloud,
            since,
            f"{what} not end ({named(sorted(ids))}), the first since {moment(since)}, and cost {cost}: "
            f"{why}. Give spotsup the permission, take the lock or protection away, or end them in the cloud's console",
            members=ids,
            over=f"all machines of {cloud} that had to end have ended",
        )


def _unremoved(volatile: VolatileState, now: float) -> Iterator[Problem]:
    """Disks, addresses and interfaces that a cloud does not remove."""
    for cloud, view in volatile.leftovers.items():
        ended = {key: seen.ended_at for key, seen in view.sightings.items() if seen.ended_at}
        left = frozenset(key for key, at in ended.items() if now - at >= UNREMOVED_S)
        if left:
            since = min(ended[key] for key in left)
            yield Problem(
                EventKind.NOT_ENDED,
                f"{cloud}-leftovers",
                since,
                f"{len(left)} things that machines of {cloud} left behind cannot be removed, the first since "
                f"{moment(since)}, and may cost money ({named(sorted(left))}): the daemon's log has the cloud's "
                "reasons; remove them in the cloud's console",
                members=left,
                over=f"nothing is left behind in {cloud} any more",
            )


def _leftovers_unlisted(world: World, volatile: VolatileState) -> Iterator[Problem]:
    """Clouds that do not answer what machines have left behind."""
    for cloud in world.clouds:
        view = volatile.leftovers.get(cloud, LeftoversView())
        if view.failing_since and cloud not in volatile.denials:
            yield Problem(
                EventKind.NOT_LISTED,
                f"{cloud}-leftovers",
                view.failing_since,
                f"{cloud} has not said since {moment(view.failing_since)} which disks, addresses and interfaces "
                f"machines have left behind: {view.error}. Until it does, none is removed, and they cost money; "
                "`spotsupd check` shows which permission is missing",
                UNREMOVED_S,
                over=f"{cloud} says again what machines have left behind",
            )


def _unclear(world: World, volatile: VolatileState, now: float) -> Iterator[Problem]:
    """Requests of which a cloud that is listed does not say whether machines came of them."""
    unclear: dict[str, list[NodeRecord]] = {}
    for job in world.jobs.values():
        for node in job.billed:
            since = max(node.state_since, world.timers_paused_until)
            listed_at = volatile.cloud(node.offer.cloud).region_listed_at(node.offer.region)
            waits = node.state is NodeState.REQUESTED and node.launch_unknown and now - since >= UNENDED_S
            if waits and now - listed_at < UNLISTED_S:
                unclear.setdefault(node.offer.cloud, []).append(node)
    for cloud, nodes in unclear.items():
        first = min(nodes, key=lambda node: node.state_since)
        yield Problem(
            EventKind.LAUNCH_UNCLEAR,
            cloud,
            first.state_since,
            f"{cloud} does not say whether it launched machines for {named(sorted(node.id for node in nodes))}, the "
            f"first since {moment(first.state_since)}: {first.error or 'no answer'}. They may run and cost money: look "
            "at the cloud's console and at `spotsupd check`",
            members=frozenset(node.id for node in nodes),
            over=f"{cloud} has said what became of all requests",
        )


def _not_configured(world: World) -> Iterator[Problem]:
    """Clouds on which machines run for jobs, and of which the configuration says nothing."""
    known = frozenset(world.clouds)
    nodes = [node for job in world.jobs.values() if not job.clouds <= known for node in job.billed]
    for cloud in sorted({node.offer.cloud for node in nodes} - known):
        there = [node for node in nodes if node.offer.cloud == cloud]
        usd = sum(node.offer.usd_per_hour or 0.0 for node in there)
        count = f"{len(there)} machines" if len(there) > 1 else "1 machine"
        jobs = named(sorted({node.job for node in there}))
        yield Problem(
            EventKind.CLOUD_MISSING,
            cloud,
            0.0,
            f"spotsupd.toml of the leading daemon has no {cloud} any more, and {count} of {jobs} may run there "
            f"(${usd:.2f} an hour): nothing there can be seen, replaced or ended. Put it back and restart spotsupd; "
            "take it out once the jobs have ended",
            members=frozenset(node.id for node in there),
            over=f"no machine is on {cloud} any more that this daemon cannot see",
        )
