"""`spotsupd adopt`: asks the clouds what runs, waits for agents to be heard, writes down what planner/adoption says.

Any daemon may do it: nothing is started or ended here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from provisioners.base import Instance, InstanceState, Offer, Provisioner, ProvisionerError
from supervisor.errors import CommandRefusedError, NotFoundError
from supervisor.journal.journal import Journal, Reading
from supervisor.planner.adoption import Adopted, adopt, families
from supervisor.planner.journal_guard import unknown_machines
from supervisor.planner.world import CloudView
from supervisor.runtime.background import in_background
from supervisor.runtime.clock import Clock
from supervisor.runtime.offers import offers_in_order
from supervisor.spec import JobSpec

CALL_TIMEOUT_S = 8.0
MAX_WAIT_S = 10.0


class Adoption:
    """Over the journal and the clouds of this daemon. `cluster`: whose tag the machines carry."""

    def __init__(
        self,
        journal: Journal,
        provisioners: Mapping[str, Provisioner],
        cluster: str,
        clock: Clock,
        wait_for: Callable[[Callable[[Reading], bool], float], bool],
    ) -> None:
        self._journal = journal
        self._provisioners = provisioners
        self._cluster = cluster
        self._clock = clock
        self._wait_for = wait_for

    def adopt(self, release: Collection[str]) -> list[Adopted]:
        """Take in every machine that the journal does not know; `release`: names of jobs whose machines are to end.

        Raises CommandRefusedError where nobody said what some of them are, or a cloud does not answer, NotFoundError
        for a name that none of them has: then nothing is written.
        """
        clouds = {name: self._listed(name) for name in self._provisioners}
        jobs = self._journal.read().jobs.values()
        unknown = unknown_machines(clouds, {node.id: node.state for job in jobs for node in job.nodes.values()})
        found = families(unknown)
        stray = sorted({*release} - {family.name for family in found})
        if stray:
            raise NotFoundError(f"no machine of a job {stray[0]!r} is missing from the journal")
        # Agents are back seconds after etcd is; one that is heard is not suspected.
        running = {each.node for each in unknown if each.state is InstanceState.RUNNING}
        self._wait_for(lambda reading: running <= reading.unjournaled, MAX_WAIT_S)
        reading = self._journal.read()
        offer_of = self._offers({each.id: name for name, view in clouds.items() for each in view.instances.values()})
        adopted = adopt(found, reading.jobs, reading.unjournaled, release, offer_of, self._clock.now())
        for each in adopted:
            if not self._journal.adopt(each.job, each.revision, each.nodes, each.event):
                raise CommandRefusedError(f"job {each.job.name} changed meanwhile: run `spotsupd adopt` again")
        return adopted

    def _listed(self, cloud: str) -> CloudView:
        provisioner = self._provisioners[cloud]
        asked = in_background(lambda: provisioner.instances(self._cluster, CALL_TIMEOUT_S), f"adopt-{cloud}")
        try:
            found: Sequence[Instance] = asked.result(CALL_TIMEOUT_S + 1.0)
        except (ProvisionerError, TimeoutError) as error:
            raise CommandRefusedError(f"{cloud} does not say what runs ({error}): nothing was adopted") from error
        return CloudView({instance.id: instance for instance in found})

    def _offers(self, cloud_of: Mapping[str, str]) -> Callable[[Instance, JobSpec], Offer]:
        """What each machine is billed as, by its type and zone; without a price where its cloud does not tell now."""
        known: dict[tuple[str, str], Sequence[Offer]] = {}

        def offer_of(instance: Instance, spec: JobSpec) -> Offer:
            cloud = cloud_of[instance.id]
            if (cloud, spec.name) not in known:
                known[cloud, spec.name] = self._asked_offers(cloud, spec)
            place = (instance.zone, instance.instance_type)
            market = spec.offer_queries[0].market
            plain = Offer(cloud, instance.region, instance.zone, instance.instance_type, market, None)
            offers = known[cloud, spec.name]
            return next((each for each in offers if (each.zone, each.instance_type) == place), plain)

        return offer_of

    def _asked_offers(self, cloud: str, spec: JobSpec) -> Sequence[Offer]:
        provisioner = self._provisioners[cloud]
        asked = in_background(
            lambda: offers_in_order(provisioner, spec.offer_queries, CALL_TIMEOUT_S), f"adopt-{cloud}"
        )
        try:
            return asked.result(CALL_TIMEOUT_S + 1.0)
        except (ProvisionerError, TimeoutError):
            return ()
