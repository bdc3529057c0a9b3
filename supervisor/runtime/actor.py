"""Runs actions on worker threads. `Effects` has what each action does, `ThreadActor` how it is run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

import structlog
from spotsup_trainer.decoding import printable
from spotsup_trainer.vitals import Pulse, Vitals

from provisioners.base import (
    DeniedError,
    Instance,
    InstanceState,
    LaunchRequest,
    Owner,
    PartialListingError,
    Provisioner,
    ProvisionerError,
    Transient,
    Unknown,
)
from supervisor.alerts.routes import Channel
from supervisor.alerts.senders import Outgoing, Receipt, Sender
from supervisor.identity import Identity
from supervisor.model import JobRecord, NodeRecord
from supervisor.planner.actions import (
    Action,
    AlertsDone,
    AskDone,
    AskNode,
    Bootstrap,
    BootstrapDone,
    Clean,
    CleanDone,
    FetchOffers,
    Find,
    FindDone,
    Launch,
    LaunchDone,
    LeftoversDone,
    ListDone,
    ListInstances,
    ListLeftovers,
    OffersDone,
    Outcome,
    Remove,
    RemoveDone,
    SendAlerts,
    Terminate,
    TerminateDone,
)
from supervisor.runtime.clock import Clock
from supervisor.runtime.lanes import LANES, Lanes, lane_of
from supervisor.runtime.offers import offers_in_order

log = structlog.get_logger("spotsupd")

CALL_TIMEOUT_S = 30.0
LAUNCH_TIMEOUT_S = 60.0
CONSOLE_TIMEOUT_S = 10.0
CONSOLE_LINES = 40
# A progress bar may be one line of megabytes, and the texts of forty failed nodes must fit into one etcd transaction.
CONSOLE_TAIL_CHARACTERS = 5_000
# If all threads of a lane are busy, more actions wait, and none ends for so long: each action has a limit below that.
STUCK_S = 3600.0
NO_CLEANER = "this daemon cleans no machines"
NOT_STARTED = "not started: this daemon may have lost its leadership"


class Preparer(Protocol):
    """Prepares one machine over SSH."""

    def prepare(self, node: NodeRecord, job: JobRecord) -> BootstrapDone:
        """Bounded by the bootstrap's time limit; never raises for a fault of the machine."""
        ...


class Cleaner(Protocol):
    """Removes over SSH what a job left on a machine."""

    def clean(self, node: NodeRecord, job: JobRecord) -> CleanDone:
        """Bounded by a time limit of its own; never raises for a fault of the machine."""
        ...


class Evidence(Protocol):
    """Asks one silent node over SSH."""

    def ask(self, node: NodeRecord) -> AskDone:
        """Bounded by a time limit of its own; never raises for a fault of the machine."""
        ...


class PreTerminate(Protocol):
    """What is done on a machine before it is terminated: takes seconds at most, and never raises."""

    def log_of(self, node: NodeRecord) -> str:
        """Return the tail of the agent's and the launcher's log, "" if it cannot be read."""
        ...

    def unmount(self, node: NodeRecord, job: JobRecord) -> None:
        """Stop the agent and unmount the job's file systems, so that all writes reach the server."""
        ...


class Effects:
    """Carries out each kind of action with one call; every fault becomes an outcome."""

    def __init__(  # noqa: PLR0913 - keyword-only; each serves one kind of action
        self,
        *,
        owner: Owner,
        provisioners: Mapping[str, Provisioner],
        identity: Identity,
        preparer: Preparer,
        evidence: Evidence,
        senders: Mapping[str, Sender],
        clock: Clock,
        dead_man_s: Mapping[str, float] = MappingProxyType({}),
        pre_terminate: PreTerminate | None = None,
        cleaner: Cleaner | None = None,
        prices: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """`senders`: of alerts, by channel. `dead_man_s`: by cloud, the timeout of a machine's dead-man switch in
        seconds, 0 for none. `prices`: the configuration's."""
        self._prices = prices
        self._owner = owner
        self._provisioners = provisioners
        self._identity = identity
        self._preparer = preparer
        self._evidence = evidence
        self._senders = senders
        self._clock = clock
        self._dead_man_s = dead_man_s
        self._pre_terminate = pre_terminate
        self._cleaner = cleaner

    def perform(self, action: Action) -> Outcome:  # noqa: PLR0911 - one per kind
        """Carry out one action."""
        match action:
            case Launch():
                return self._launch(action)
            case Find(node):
                return self._find(node)
            case Bootstrap(node, job):
                return self._preparer.prepare(node, job)
            case Clean(node, job):
                return self._cleaner.clean(node, job) if self._cleaner else CleanDone(node.id, NO_CLEANER)
            case Terminate():
                return self._terminate(action)
            case ListInstances(cloud):
                return self._list(cloud)
            case ListLeftovers(cloud):
                return self._leftovers(cloud)
            case Remove():
                return self._remove(action)
            case FetchOffers():
                return self._offers(action)
            case AskNode(node):
                return self._evidence.ask(node)
            case SendAlerts(channel, message):
                return self._send(channel, message)

    def _launch(self, action: Launch) -> LaunchDone:
        node = action.node
        request = LaunchRequest(
            token=node.token,
            owner=self._owner,
            node=node.id,
            offer=node.offer,
            host_key=self._identity.host_key(node.id),
            authorized_keys=self._identity.authorized_keys(node.id),
            disk_gb=action.disk_gb,
            max_usd_per_hour=node.max_usd_per_hour,
            dead_man_s=self._dead_man_s.get(node.offer.cloud, 0.0),
        )
        try:
            outcome = self._provisioner(node.offer.cloud).launch(request, LAUNCH_TIMEOUT_S)
        except ProvisionerError as error:
            outcome = Transient(str(error))
        return LaunchDone(node.id, node.offer, outcome)

    def _provisioner(self, name: str) -> Provisioner:
        """Return a cloud. Raises ProvisionerError for one that an earlier configuration had."""
        if name not in self._provisioners:
            raise ProvisionerError(f"spotsupd.toml has no {name}: put it back and restart spotsupd")
        return self._provisioners[name]

    def _find(self, node: NodeRecord) -> FindDone:
        try:
            found = self._provisioner(node.offer.cloud).find(self._owner, node.token, CALL_TIMEOUT_S)
        except ProvisionerError as error:
            return FindDone(node.id, None, str(error))
        if found is not None and found.owner != self._owner:
            return FindDone(node.id, None, f"{node.offer.cloud} answered with {found.id} of another installation")
        return FindDone(node.id, found)

    def _terminate(self, action: Terminate) -> TerminateDone:
        console = self._console_tail(action) if action.read_console else ""
        log_text = self._pre_terminate.log_of(action.read_log_of) if self._pre_terminate and action.read_log_of else ""
        log_text = printable(log_text[-CONSOLE_TAIL_CHARACTERS:], CONSOLE_TAIL_CHARACTERS)
        if self._pre_terminate and action.unmount_first:
            self._pre_terminate.unmount(*action.unmount_first)
        try:
            self._provisioner(action.cloud).terminate(action.instance_id, CALL_TIMEOUT_S)
        except ProvisionerError as error:
            return TerminateDone(action.node, action.instance_id, str(error), console, log_text)
        return TerminateDone(action.node, action.instance_id, console=console, log=log_text)

    def _console_tail(self, action: Terminate) -> str:
        """Return the end of the console, which may say why the machine failed. An error here never blocks
        termination."""
        try:
            text = self._provisioner(action.cloud).console(action.instance_id, CONSOLE_TIMEOUT_S)
        except ProvisionerError as error:
            return f"cannot be read: {error}"
        tail = "\n".join(text.strip().splitlines()[-CONSOLE_LINES:])[-CONSOLE_TAIL_CHARACTERS:]
        return printable(tail, CONSOLE_TAIL_CHARACTERS)

    def _list(self, cloud: str) -> ListDone:
        asked_at = self._clock.now()
        try:
            coverage = self._provisioner(cloud).coverage(CALL_TIMEOUT_S)
            found = self._provisioner(cloud).instances(self._owner, CALL_TIMEOUT_S)
        except PartialListingError as partial:
            return ListDone(cloud, asked_at, self._listed(partial.found), coverage=coverage, silent=partial.silent)
        except ProvisionerError as error:
            return ListDone(cloud, asked_at, error=str(error), denied=isinstance(error, DeniedError))
        return ListDone(cloud, asked_at, self._listed(found), coverage=coverage)

    def _leftovers(self, cloud: str) -> LeftoversDone:
        asked_at = self._clock.now()
        try:
            found = self._provisioner(cloud).leftovers(self._owner, CALL_TIMEOUT_S)
        except ProvisionerError as error:
            return LeftoversDone(cloud, asked_at, error=str(error))
        return LeftoversDone(cloud, asked_at, tuple(each for each in found if each.owner == self._owner))

    def _listed(self, found: Iterable[Instance]) -> tuple[Instance, ...]:
        """Return the machines without those of others, should a cloud list them: what is listed here is adopted, or
        ended. Whose one is that cannot be read is not known: it may be ours, and counts as listed."""
        unreadable = InstanceState.UNREADABLE
        return tuple(each for each in found if each.owner == self._owner or each.state is unreadable)

    def _remove(self, action: Remove) -> RemoveDone:
        try:
            self._provisioner(action.cloud).remove(action.leftover, CALL_TIMEOUT_S)
        except ProvisionerError as error:
            log.warning("cannot remove a leftover; will retry", id=action.leftover.id, error=str(error))
            return RemoveDone(action.leftover.id, str(error))
        return RemoveDone(action.leftover.id)

    def _offers(self, action: FetchOffers) -> OffersDone:
        asked_at = self._clock.now()
        try:
            found = offers_in_order(self._provisioner(action.cloud), action.queries, CALL_TIMEOUT_S, self._prices)
        except ProvisionerError as error:
            return OffersDone(action.job, asked_at, error=str(error))
        return OffersDone(action.job, asked_at, found)

    def _send(self, channel: Channel, message: Outgoing) -> AlertsDone:
        receipt = self._senders[channel.name].send(message)
        if receipt.error:
            what = "a channel refuses an alert" if receipt.refused else "cannot deliver alerts; will retry"
            ids = ", ".join(event.id for event in message.events[:3])
            log.warning(what, channel=channel.name, count=len(message.events), first=ids, error=receipt.error)
        return AlertsDone(channel, message, receipt)


def outcome_of_fault(action: Action, fault: str) -> Outcome:  # noqa: PLR0911 - one per kind
    """Return the outcome of an action that ended in an unexpected error: always the one that claims least."""
    match action:
        case Launch(node):
            return LaunchDone(node.id, node.offer, Unknown(fault))
        case Find(node):
            return FindDone(node.id, None, fault)
        case Bootstrap(node):
            return BootstrapDone(node.id, fault)
        case Clean(node):
            return CleanDone(node.id, fault)
        case Terminate():
            return TerminateDone(action.node, action.instance_id, fault)
        case ListInstances(cloud):
            return ListDone(cloud, 0.0, error=fault)
        case ListLeftovers(cloud):
            return LeftoversDone(cloud, 0.0, error=fault)
        case Remove(leftover=leftover):
            return RemoveDone(leftover.id, fault)
        case FetchOffers():
            return OffersDone(action.job, 0.0, error=fault)
        case AskNode(node):
            return AskDone(node.id, 0.0, fault)
        case SendAlerts(channel, message):
            return AlertsDone(channel, message, Receipt(error=fault))


def outcome_of_not_started(action: Action) -> Outcome:
    """Return the outcome of an action that may not start any more; no failure is counted (P5)."""
    if isinstance(action, Bootstrap):
        return BootstrapDone(action.node.id, NOT_STARTED, unreachable=True)
    if isinstance(action, Clean):
        return CleanDone(action.node.id, NOT_STARTED, unreachable=True)
    return outcome_of_fault(action, NOT_STARTED)


class ThreadActor:
    """Runs actions on daemon threads: an action that hangs beyond its limit delays neither others nor our exit.

    `wake` is called after each outcome. `may_act` is asked before each action that changes a cloud or a machine: the
    process may have been suspended since the action was decided (P10).
    """

    def __init__(
        self,
        perform: Callable[[Action], Outcome],
        wake: Callable[[], None],
        may_act: Callable[[], bool] = lambda: True,
        limits: Mapping[str, int] = LANES,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limits`: how many actions of each lane run at a time, on as many threads."""
        self._perform = perform
        self._wake = wake
        self._may_act = may_act
        self._now_s = now_s
        self._lanes = Lanes(limits)
        self._done: queue.SimpleQueue[tuple[Action, Outcome]] = queue.SimpleQueue()
        self._threads: dict[str, list[threading.Thread]] = {lane: [] for lane in limits}
        self._idle = dict.fromkeys(limits, 0)
        self._pulse = Pulse()
        self._lock = threading.Lock()
        self._news = {lane: threading.Condition(self._lock) for lane in limits}
        self._limits = limits

    def start(self, action: Action) -> None:
        """Give an action to an idle thread of its lane, or to a new one; beyond the lane's limit it waits its turn."""
        lane = lane_of(action)
        with self._lock:
            self._lanes.add(action, self._now_s())
            threads = self._threads[lane]
            if self._idle[lane]:
                self._idle[lane] -= 1
                self._news[lane].notify()
            elif len(threads) < self._limits[lane]:
                name = f"actor-{lane}-{len(threads) + 1}"
                threads.append(threading.Thread(target=self._work, args=(lane,), name=name, daemon=True))
                threads[-1].start()

    def collect(self) -> list[tuple[Action, Outcome]]:
        """Return the actions that ended since the last call."""
        found = []
        while not self._done.empty():
            found.append(self._done.get())
        return found

    def waits_s(self) -> dict[str, float]:
        """Return for how long the oldest action of each lane has waited for a thread, in seconds."""
        with self._lock:
            return self._lanes.waits_s(self._now_s())

    def vitals(self) -> Vitals:
        """Return how its threads are. It has a pulse to show only while more actions wait than threads can take."""
        with self._lock:
            threads = [each for lane in self._threads.values() for each in lane]
            return self._pulse.vitals(STUCK_S, *threads, idle=not self._lanes.is_full)

    def _allowed(self, action: Action) -> bool:
        return not isinstance(action, Launch | Bootstrap | Clean | Terminate | Remove) or self._may_act()

    def _next(self, lane: str) -> Action:
        with self._lock:
            while (action := self._lanes.take(lane)) is None:
                self._idle[lane] += 1
                self._news[lane].wait()
            return action

    def _work(self, lane: str) -> None:
        while True:
            action = self._next(lane)
            try:
                outcome = self._perform(action) if self._allowed(action) else outcome_of_not_started(action)
            except BaseException as error:  # a cloud's SDK may raise anything, and without an outcome no action ends
                log.exception("an action failed unexpectedly", action=action.key)
                outcome = outcome_of_fault(action, f"{type(error).__name__}: {error}")
            self._done.put((action, outcome))
            with self._lock:
                self._lanes.end(action)
            self._pulse.beat()
            self._wake()
