"""A run of `make contract-real`: the estimate, the probe, the job, the sweep, the report."""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spotsup_trainer.objects.store import ObstoreStore, StoreError

from provisioners.base import HostKey, LaunchRequest, Market, Offer, OfferQuery, Owner, Provisioner, ProvisionerError
from provisioners.registry import CLOUDS
from provisioners.settings import CloudSettings
from supervisor.config import Config
from supervisor.identity import load_identity
from supervisor.market.prices import priced
from tests.contract import assumptions, report
from tests.contract.errors import UnusableError
from tests.contract.evidence import Evidence, Recorder, Step
from tests.contract.job import ContractJob, JobError, Times, dead_man_of
from tests.contract.probe import Limits, Probe
from tests.contract.spending import TYPES, Estimate, UnknownCostError, estimate
from tests.contract.sweeping import end_all, note, running
from tests.contract.verdicts import Verdict, judge
from tests.support.machines import CLIENT_KEY, HOST_KEY
from tools.stack import Stack, StackError

OFFERS_S = 60.0
QUICK_TIMES = Times(training_s=240.0, replaced_s=240.0, finished_s=120.0, gone_s=60.0, step_s=0.1, steps_after=30)
QUICK_LIMITS = Limits(running_s=60.0, login_s=60.0, console_s=20.0, ended_s=30.0, left_s=5.0, second_s=3.0)


def run_account(config: Config, provisioner: Provisioner, options: argparse.Namespace, over: Callable[[], None]) -> int:
    """0: the job succeeded, nothing is left, no assumption failed. `over`: from now on nothing is left to interrupt.
    Raises UnusableError before anything is launched."""
    settings = config.cloud(options.cloud)
    assert isinstance(settings, CloudSettings)
    cost, offer = estimated(provisioner, config.prices, options.budget_usd)
    name, folder = f"contract-{secrets.token_hex(4)}", options.folder
    print(
        f"{name} on {options.cloud}: {cost.instance_type} in {cost.region}, at most ${cost.usd:.2f} of "
        f"${options.budget_usd:.2f}, bound by {cost.bound_by}\n"
        f"if this is killed: make contract-real CLOUD={options.cloud} CONFIG={options.config} SWEEP={name}",
        flush=True,
    )
    if not settings.dead_man_after_s:
        print("there is no dead-man switch: should this computer vanish, its machines cost money until they are swept")
    with running(folder, name):
        stack = Stack(folder / name, cluster=name)
        stack.prepare()
        mark = load_identity(stack.state / "cluster.key").mark
        probe, owner = Owner(f"{name}-probe", mark), Owner(name, mark)
        note(folder, name, options.cloud, (probe, owner))
        recorder = Recorder(folder / name / "evidence.jsonl", time.time)
        run = _Run(settings, provisioner, recorder, stack, cost, options)
        problem, left = "it did not come so far", ["this run did not come to its sweep"]
        try:
            problem = run.play(probe, owner, offer)
        except KeyboardInterrupt:
            problem = "interrupted"
        finally:
            over()
            left = run.clean_up((probe, owner))
            if not left:
                note(folder, name, options.cloud, (probe, owner), swept=True)
            code = run.report(name, problem, left)
    return code


def estimated(provisioner: Provisioner, prices: Mapping[str, float], budget_usd: float) -> tuple[Estimate, Offer]:
    """What it costs, and the probe's offer. `prices`: the person's own. Raises UnusableError."""

    def offers(market: Market) -> Sequence[Offer]:
        query = OfferQuery(instance_types=TYPES[provisioner.name], market=market)
        try:
            return priced(provisioner.offers(query, OFFERS_S), prices)
        except ProvisionerError as error:
            if market is Market.SPOT:
                raise UnusableError(f"{provisioner.name} offers no small spot machine: {error}") from error
            return ()

    spot = offers(Market.SPOT)
    try:
        cost = estimate(spot, offers(Market.ON_DEMAND), budget_usd)
    except UnknownCostError as error:
        raise UnusableError(str(error)) from error
    place = (cost.region, cost.instance_type)
    return cost, next(each for each in spot if (each.region, each.instance_type) == place)


def _remove_checkpoints(place: str) -> None:
    """They cost little: what is left is named, and no failure of the run."""
    try:
        store = ObstoreStore(place, os.environ)
        store.delete([each.name for each in store.listed()])
        print(f"{place} is empty", flush=True)
    except StoreError as error:
        print(f"checkpoints may be left in {place}: {error}", file=sys.stderr)


class _Run:
    """The parts of one run, with what they share."""

    def __init__(
        self,
        settings: CloudSettings,
        provisioner: Provisioner,
        recorder: Recorder,
        stack: Stack,
        cost: Estimate,
        options: argparse.Namespace,
    ) -> None:
        self._settings, self._cloud, self._recorder, self._stack = settings, provisioner, recorder, stack
        self._cost, self._options = cost, options
        self._began = time.time()
        # Of this run alone, so that it can be removed as a whole.
        self._place = f"{options.checkpoints}/{stack.folder.name}" if options.checkpoints else ""
        times = QUICK_TIMES if options.test_cloud else Times()
        self._job = ContractJob(
            stack, provisioner, settings, recorder, times, fis_role=options.fis_role, checkpoints=self._place
        )
        self._submitted = False
        self._job_usd: float | None = None

    def play(self, probe: Owner, owner: Owner, offer: Offer) -> str:
        """The probe, then the job; what went wrong with the job, "" where nothing did."""
        print("one machine, asked directly", flush=True)
        request = LaunchRequest(
            token=f"{probe.cluster}-1",
            owner=probe,
            node=f"{probe.cluster}-1",
            offer=offer,
            host_key=HostKey(HOST_KEY.public, HOST_KEY.private_openssh),
            authorized_keys=(CLIENT_KEY.public,),
            dead_man_s=dead_man_of(self._settings),
        )
        limits = QUICK_LIMITS if self._options.test_cloud else Limits()
        Probe(self._cloud, probe, self._recorder, limits).run(request)
        end_all(self._cloud, (probe,), 0.0)
        print("a job on two machines", flush=True)
        listings = Probe(self._cloud, owner, self._recorder, limits)
        try:
            self._job.configure(Path(self._options.config), owner.cluster)
            self._stack.start_daemon()
            self._submitted = True
            self._job.submit(self._cost, self._options.budget_usd - self._cost.probe_usd)
            self._job.run(listings.look)
        except (StackError, JobError, subprocess.TimeoutExpired) as error:
            return str(error)
        finally:
            if self._submitted:
                over_at = time.time()
                self._job.end(listings.look)
                self._job_usd = self._job.spent_usd()
                print(f"the job's machines were ended by its daemon within {time.time() - over_at:.0f} s", flush=True)
        return ""

    def clean_up(self, owners: Sequence[Owner]) -> list[str]:
        """The daemon first: it would replace what is ended here."""
        began = time.time()
        try:
            left = [f"process {each}" for each in self._stack.close().processes]
        except Exception as error:  # noqa: BLE001 - whatever it is, machines cost money
            left = [f"its daemon, perhaps: {error!r}"]
        left += end_all(self._cloud, owners, self._options.quiet_s)
        if self._place:
            _remove_checkpoints(self._place)
        self._recorder.add(Step.SWEPT, "; ".join(left) or "nothing is left", began=began, ok=not left)
        return left

    def report(self, name: str, problem: str, left: Sequence[str]) -> int:
        """Write it, and say what it says."""
        listed = assumptions.read()
        evidence = Evidence(
            cloud=self._options.cloud,
            probe=f"{name}-probe",
            job=name,
            notice_s=CLOUDS[self._options.cloud].notice_s,
            preempts=self._job.forced is not None and self._job.forced.preempts,
            seen=tuple(self._recorder.seen),
            listings=tuple(self._recorder.listings),
        )
        judged = judge(evidence, {each.number: each.text for each in listed})
        result = report.Result(
            name=name,
            cloud=self._options.cloud,
            began=self._began,
            ended=time.time(),
            budget_usd=self._options.budget_usd,
            estimate_usd=self._cost.usd,
            machine_type=self._cost.instance_type,
            region=self._cost.region,
            price=self._cost.bound_by,
            job_usd=self._job_usd,
            probe_usd=self._cost.probe_usd,
            problem=problem,
            left=tuple(left),
        )
        written, _ = report.write(self._options.folder, result, evidence, judged, listed)
        failed = [number for number, each in judged.items() if each.verdict is Verdict.FAILED]
        for number in failed:
            print(f"{number} did not hold: {judged[number].evidence}", file=sys.stderr)
        if problem:
            print(f"the job: {problem}", file=sys.stderr)
        print(f"the report is in {written}")
        return 2 if problem == "interrupted" else int(bool(failed) or not result.ok)
