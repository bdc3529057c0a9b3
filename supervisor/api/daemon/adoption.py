"""`spotsupd adopt`: lists the clouds, waits for the nodes' agents to report, and writes what planner/adoption decides.

Any daemon may do it: it starts and ends no machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from provisioners.base import Instance, InstanceState, Offer, Owner, Provisioner, ProvisionerError
from supervisor.errors import CommandRefusedError, NotFoundError
from supervisor.journal.journal import Journal, Reading
from supervisor.planner.adoption import Adopted, adopt, group_by_job
from supervisor.planner.continuity import believed
from supervisor.planner.journal_guard import unknown_machines
from supervisor.planner.orphans import states_by_machine
from supervisor.planner.world import CloudView
from supervisor.runtime.background import in_background
from supervisor.runtime.clock import Clock
from supervisor.runtime.offers import offers_in_order
from supervisor.spec import JobSpec

CALL_TIMEOUT_S = 8.0
MAX_WAIT_S = 10.0
MAX_TRIES = 5


class Adoption:
    """Over this daemon's journal and clouds. `owner`: as the tags of its machines have it; others are not offered."""

    def __init__(
        self,
        journal: Journal,
        provisioners: Mapping[str, Provisioner],
        owner: Owner,
        clock: Clock,
        wait_for: Callable[[Callable[[Reading], bool], float], bool],
    ) -> None:
        self._journal = journal
        self._provisioners = provisioners
        self._owner = owner
        self._clock = clock
        self._wait_for = wait_for

    def adopt(self, release: Collection[str], accounts: Collection[str] = ()) -> list[Adopted]:
        """Write every unjournaled machine into the journal, which is believed from then on; those of jobs in `release`
        will be terminated. `accounts`: clouds whose present account is right, whatever the journal's machines are in.

        Raises CommandRefusedError if a machine's job is unknown or a cloud does not answer, NotFoundError for a name
        that no unjournaled machine carries, or of no cloud; then nothing is written.
        """
        if strange := sorted({*accounts} - self._provisioners.keys()):
            raise NotFoundError(f"{strange[0]} is no cloud of this daemon: it has {', '.join(self._provisioners)}")
        right = {name: self._account(name) for name in accounts}
        clouds = {name: self._listed(name) for name in self._provisioners}
        jobs = self._journal.read().jobs.values()
        unknown = unknown_machines(clouds, states_by_machine(jobs))
        found = group_by_job(unknown)
        unmatched = sorted({*release} - {group.job for group in found})
        if unmatched:
            raise NotFoundError(f"no machine of a job {unmatched[0]!r} is missing from the journal: leave its name out")
        # Agents reconnect seconds after etcd is back; a node whose agent reports is not suspected.
        running = {each.node for each in unknown if each.state is InstanceState.RUNNING}
        self._wait_for(lambda reading: running <= reading.unjournaled, MAX_WAIT_S)
        reading = self._journal.read()
        offer_of = self._offers({each.id: name for name, view in clouds.items() for each in view.instances.values()})
        adopted = adopt(found, reading.jobs, reading.unjournaled, release, offer_of, self._clock.now())
        for each in adopted:
            if not self._journal.adopt(each.job, each.revision, each.nodes, each.event):
                raise CommandRefusedError(f"job {each.job.name} changed meanwhile: run `spotsupd adopt` again")
        self._believe(right)
        return adopted

    def _believe(self, accounts: Mapping[str, str]) -> None:
        for _ in range(MAX_TRIES):  # the leader counts on in the same record
            reading = self._journal.read()
            cluster = reading.cluster
            if cluster is None or not (cluster.doubted_at or accounts):
                return
            if self._journal.set_cluster(believed(cluster, accounts), reading.cluster_revision):
                return
            self._wait_for(partial(_has_changed, reading.cluster_revision), CALL_TIMEOUT_S)
        raise CommandRefusedError("the journal changed meanwhile: run `spotsupd adopt` again")

    def _account(self, cloud: str) -> str:
        provisioner = self._provisioners[cloud]
        pending = in_background(lambda: provisioner.coverage(CALL_TIMEOUT_S), f"adopt-{cloud}")
        try:
            return pending.result(CALL_TIMEOUT_S + 1.0).account
        except (ProvisionerError, TimeoutError) as error:
            raise CommandRefusedError(
                f"{cloud} does not say of which account the credentials are ({error}): nothing was adopted"
            ) from error

    def _listed(self, cloud: str) -> CloudView:
        provisioner = self._provisioners[cloud]
        pending = in_background(lambda: provisioner.instances(self._owner, CALL_TIMEOUT_S), f"adopt-{cloud}")
        try:
            found: Sequence[Instance] = pending.result(CALL_TIMEOUT_S + 1.0)
        except (ProvisionerError, TimeoutError) as error:
            raise CommandRefusedError(
                f"{cloud} does not list its machines ({error}): nothing was adopted; repeat it once "
                "`spotsupd check` says that "
                "the cloud answers"
            ) from error
        return CloudView({each.id: each for each in found if each.owner == self._owner})

    def _offers(self, cloud_of: Mapping[str, str]) -> Callable[[Instance, JobSpec], Offer]:
        """Return the offer that each machine is billed by, from its type and zone; without a price if the cloud gives
        none."""
        known: dict[tuple[str, str], Sequence[Offer]] = {}

        def offer_of(instance: Instance, spec: JobSpec) -> Offer:
            cloud = cloud_of[instance.id]
            if (cloud, spec.name) not in known:
                known[cloud, spec.name] = self._fetched_offers(cloud, spec)
            place = (instance.zone, instance.instance_type)
            market = spec.offer_queries[0].market
            unpriced = Offer(cloud, instance.region, instance.zone, instance.instance_type, market, None)
            offers = known[cloud, spec.name]
            return next((each for each in offers if (each.zone, each.instance_type) == place), unpriced)

        return offer_of

    def _fetched_offers(self, cloud: str, spec: JobSpec) -> Sequence[Offer]:
        provisioner = self._provisioners[cloud]
        pending = in_background(
            lambda: offers_in_order(provisioner, spec.offer_queries, CALL_TIMEOUT_S), f"adopt-{cloud}"
        )
        try:
            return pending.result(CALL_TIMEOUT_S + 1.0)
        except (ProvisionerError, TimeoutError):
            return ()


def _has_changed(revision: int, reading: Reading) -> bool:
    return reading.cluster_revision != revision
