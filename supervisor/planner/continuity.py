"""Whether the journal and the clouds are those of before (P2, P4, 9c).

An etcd that was restored knows neither what has ended since nor what runs: while a journal is doubted, nothing is
launched for the jobs that it knew, and nothing that it does not know is ended, until an operator has looked (`spotsupd
adopt`). Nor is anything believed of a cloud that answers for another account than the one that the machines are in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from supervisor.events import EventKind
from supervisor.model import ClusterRecord, parts_of
from supervisor.planner.actions import Commit, ListDone
from supervisor.planner.orphans import ADOPT
from supervisor.planner.sentences import named
from supervisor.planner.world import JobView, Problem, VolatileState, World

# A journal that is put back by more is known to be older, by a daemon that has seen it before.
BEAT_S = 300.0
RESTORED = "it is older than what this daemon has seen of it: etcd was restored from a backup"
IMPORTED = "it was imported from a file"


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """How new a journal is: of two marks, the greater one is of the later state."""

    begun_at: float  # UNIX seconds
    epoch: int
    beat: int
    revision: int  # etcd's


def mark_of(cluster: ClusterRecord, revision: int) -> Mark:
    """Return the mark of a journal as of a revision."""
    return Mark(cluster.created_at, cluster.epoch, cluster.beat, revision)


def doubted(cluster: ClusterRecord, why: str, now: float, seen: Mark | None = None) -> ClusterRecord:
    """Return the journal's record once it is doubted. `seen`: the newest mark that is known of it; the record's own
    becomes a newer one, so that each doubt is raised once."""
    epoch = max(cluster.epoch, seen.epoch if seen else 0) + 1
    return replace(cluster, epoch=epoch, doubted_at=cluster.doubted_at or now, doubt=cluster.doubt or why)


def believed(cluster: ClusterRecord, accounts: Mapping[str, str]) -> ClusterRecord:
    """Return the journal's record once an operator has looked. `accounts`: by cloud, those that are right from now
    on."""
    return replace(cluster, doubted_at=0.0, doubt="", accounts={**cluster.accounts, **accounts})


def of_account(done: ListDone, cluster: ClusterRecord | None, jobs: Iterable[JobView]) -> ListDone:
    """Return a listing; marked as foreign where it is of another account than its cloud's machines in the journal."""
    account = cluster.accounts.get(done.cloud, "") if cluster else ""
    if done.error or account in {"", done.coverage.account} or not done.coverage.account:
        return done
    is_open = any(node.offer.cloud == done.cloud for job in jobs for node in job.billed)
    return replace(done, foreign=account) if is_open else done


def keep_continuity(world: World, volatile: VolatileState, now: float) -> list[Commit]:
    """Return the commit that counts on, and journals accounts that are used for the first time, or that a machine runs
    which only a newer journal can have asked for."""
    cluster = world.cluster
    if cluster is None or not world.cluster_revision:
        return []  # or one that this daemon cannot read
    views = {name: view for name, view in volatile.clouds.items() if not view.foreign}
    found = {name: view.coverage.account for name, view in views.items() if view.coverage.account}
    after = cluster
    if not 0 <= now - cluster.beat_at < BEAT_S:
        after = replace(after, beat=cluster.beat + 1, beat_at=now)
    if any(cluster.accounts.get(name) != account for name, account in found.items()):
        after = replace(after, accounts={**cluster.accounts, **found})
    if not cluster.doubted_at and (younger := _younger(world, volatile)):
        why = f"machines run that it has not asked for yet ({named(younger)}): etcd was restored from a backup"
        after = doubted(after, why, now)
    if after is cluster:
        return []
    return [Commit(job="", guards={}, cluster=after, cluster_revision=world.cluster_revision)]


def _younger(world: World, volatile: VolatileState) -> list[str]:
    """Return machines of jobs that the journal has, with numbers that it has given to no node yet."""
    found = []
    for view in volatile.clouds.values():
        for key in view.instances.keys() & volatile.sightings.keys():
            name, uid, number = parts_of(view.instances[key].node)
            job = world.jobs.get(name)
            if job and job.record.uid == uid and number.isdigit() and int(number) >= job.record.next_node:
                found.append(view.instances[key].node)
    return sorted(found)


def continuity_problems(world: World, volatile: VolatileState) -> Iterator[Problem]:
    """Yield what a person has to look at."""
    if (cluster := world.cluster) and cluster.doubted_at:
        text = (
            f"the journal in etcd is not believed: {cluster.doubt}. Jobs that it knows train on with the machines that "
            "they have; for them nothing is launched, and no machine that it does not know is ended. Cancel jobs that "
            f"had ended or were cancelled since, submit again those that are missing; then {ADOPT}"
        )
        over = "the journal is believed again: an operator has looked"
        yield Problem(EventKind.UNJOURNALED, "doubted", cluster.doubted_at, text, over=over)
    places = {place for job in world.jobs.values() for place in job.regions}
    for name in world.clouds:
        view = volatile.cloud(name)
        if view.foreign:
            text = (
                f"spotsup's credentials for {name} are of {view.coverage.account}, and the machines in the journal are "
                f"in {view.foreign}: what it lists says nothing of them, nothing is launched or ended there, and they "
                "cost money. Give the credentials of before back, or, if those machines are gone, "
                f"`spotsupd adopt --account {name}`"
            )
            yield Problem(
                EventKind.LISTING_DOUBTED,
                f"{name}-account",
                view.attempted_at,
                text,
                over=f"{name} answers for the account of the machines in the journal",
            )
        if omitted := {region for cloud, region in places if cloud == name and view.omits(region)}:
            nodes = [node for job in world.jobs.values() for node in job.billed if node.offer.cloud == name]
            left, where = [node for node in nodes if node.offer.region in omitted], named(sorted(omitted))
            text = (
                f"spotsupd.toml has {where} of {name} no more, where {len(left)} machines of "
                f"{named(sorted({node.job for node in left}))} may run: nothing there can be seen or ended, and it "
                "costs money. Put it back; take it out once those jobs have ended"
            )
            yield Problem(
                EventKind.CLOUD_MISSING,
                f"{name}-regions",
                view.listed_at,
                text,
                members=frozenset(node.id for node in left),
                over=f"no machine is in a region of {name} any more that is not configured",
            )
