"""The composition root: builds all parts of the daemon, starts them in order, and stops them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from spotsup_trainer.etcd import Etcd, EtcdUnavailableError
from spotsup_trainer.etcd.access import EtcdAccess
from spotsup_trainer.timing import LeaseTimes
from spotsup_trainer.wire import Keys

from provisioners.base import Provisioner
from supervisor.alerts.routes import Channel
from supervisor.alerts.senders import Sender
from supervisor.channels import channels_of, open_senders
from supervisor.clouds import open_clouds
from supervisor.config import Config
from supervisor.endpoints import refusal, tunnel_endpoints, uses_tunnel
from supervisor.errors import JournalUnavailableError, UsageError
from supervisor.identity import Identity, load_identity
from supervisor.journal.connection import (
    EtcdLogin,
    embedded_etcd_of,
    login_of,
    login_to_embedded,
    renewal,
    state_lock,
)
from supervisor.journal.etcd_keeper import EtcdKeeper
from supervisor.journal.etcd_server import EmbeddedEtcd
from supervisor.journal.etcd_trust import EtcdTrust
from supervisor.journal.journal import Journal, Reading
from supervisor.journal.store import EtcdStore
from supervisor.journal.users import JobUsers, open_to_everyone
from supervisor.metrics.export import Exporter
from supervisor.metrics.observer import Observer
from supervisor.metrics.picture import Picture
from supervisor.model import JobRecord, NodeRecord
from supervisor.nodes.clean import SshCleaner
from supervisor.nodes.evidence import SshEvidence
from supervisor.nodes.pre_terminate import SshPreTerminate
from supervisor.nodes.prepare import SshPreparer
from supervisor.nodes.tunnels import Tunnels
from supervisor.runtime.actor import Effects, ThreadActor
from supervisor.runtime.clock import Clock, SystemClock
from supervisor.runtime.curves import CurveKeeper
from supervisor.runtime.daily import DailySummary
from supervisor.runtime.descriptors import raise_limit
from supervisor.runtime.garbage import collect_all_seldom
from supervisor.runtime.housekeeping import (
    TASK_LIMIT_S,
    Housekeeping,
    daily_tasks,
    etcd_security_tasks,
    housekeeping_tasks,
    leads_and_may_write,
)
from supervisor.runtime.leader import Leadership
from supervisor.runtime.loop import Loop, Status, rest_s
from supervisor.runtime.marks import Continuity, MarkFile
from supervisor.runtime.pools import PoolKeeper
from supervisor.runtime.senders import BoundedSender
from supervisor.runtime.signals import set_on_signals
from supervisor.runtime.supervision import Supervision
from supervisor.runtime.sweeps import SweepKeeper
from supervisor.runtime.systemd import notify
from supervisor.runtime.unled import NoLeaderWatch, why_undecided

if TYPE_CHECKING:
    from fastapi import FastAPI

    from supervisor.api.service import Service
    from supervisor.api.serving import ApiServer

log = structlog.get_logger("spotsupd")


def run_daemon(config: Config, *, embedded_etcd: bool, version: str) -> None:
    """Run until SIGTERM or SIGINT. Raises StartError or JournalUnavailableError if it cannot start, and
    ThreadFailedError if it cannot go on.
    """
    wake, stop = threading.Event(), threading.Event()
    with contextlib.ExitStack() as stack:
        if problem := refusal(config, embedded=embedded_etcd):
            raise UsageError(problem)
        stack.enter_context(state_lock(config.state))
        raise_limit()
        collect_all_seldom()
        set_on_signals(stop, wake)
        server = embedded_etcd_of(config) if embedded_etcd else None
        if server is not None:
            stack.callback(server.stop)
            server.start()
        elif (renew := renewal(config, embedded=False)) and (done := renew()):
            log.info("etcd's certificate", done=done)
        _serve(config, server, version, wake, stop, stack)


def _serve(
    config: Config,
    embedded: EmbeddedEtcd | None,
    version: str,
    wake: threading.Event,
    stop: threading.Event,
    stack: contextlib.ExitStack,
) -> None:
    clock = SystemClock()
    login = login_of(config) if embedded is None else login_to_embedded(config, embedded)
    etcd = login.connect()
    stack.callback(etcd.close)
    watchers = _Watchers(wake)
    keys = Keys(config.cluster)
    store = EtcdStore(etcd, keys.world, watchers.changed)
    stack.callback(store.close)
    store.start(config.etcd.wait_s)
    journal = Journal(store, keys)
    quick = login.connect(LeaseTimes(config.timing.leader_ttl_s, len(login.endpoints)).call_s)
    stack.callback(quick.close)
    leader = Leadership(
        quick,
        f"{keys.root}leader",
        f"{socket.gethostname()}:{os.getpid()}",
        config.timing.leader_ttl_s,
        watchers.changed,
    )
    stack.callback(leader.stop)
    provisioners = open_clouds(config, stack)
    identity = load_identity(config.state / "cluster.key")
    patient = stack.enter_context(contextlib.closing(login.connect(TASK_LIMIT_S)))
    users = _users(etcd, login, journal, identity)
    channels, senders = channels_of(config), _senders(config, clock)

    tunnels = Tunnels(config, identity, journal, login.endpoints, clock, leader.lease_valid)
    effects = Effects(
        owner=identity.owner(config.cluster),
        provisioners=provisioners,
        identity=identity,
        preparer=SshPreparer(config, identity, journal, *_ways_to_etcd(config, login, users), clock, tunnels.problem),
        evidence=SshEvidence(config, identity, clock),
        senders=senders,
        clock=clock,
        dead_man_s={name: found.dead_man_after_s for name in provisioners if (found := config.cloud(name))},
        pre_terminate=SshPreTerminate(config, identity, clock),
        cleaner=SshCleaner(config, identity, clock),
        prices=config.prices,
    )
    actor = ThreadActor(effects.perform, wake.set, leader.lease_valid)
    rules = config.rules(channels)
    sweeps = SweepKeeper(journal, leader, clock)
    loop = Loop(
        journal,
        leader,
        actor,
        clock,
        rules,
        tuple(provisioners),
        Continuity(identity.mark, MarkFile(config.state / "journal.json")),
        leader.etcd_problem,
        lambda: (*housekeeping.problems(), *sweeps.problems()),
    )
    housekeeping = Housekeeping(
        [
            *housekeeping_tasks(config, patient, journal, leader, clock, compacts_itself=embedded is not None),
            *daily_tasks(config.alerts.daily, DailySummary(journal, clock, leader.guard, channels)),
            *etcd_security_tasks(
                users,
                renewal(config, embedded=embedded is not None),
                EtcdTrust(login, journal, clock.now, leader.guard, bool(channels)) if login.tls else None,
            ),
        ],
        lambda: leads_and_may_write(leader, journal),
    )

    def status() -> Status:
        counters = {**loop.status.counters, **housekeeping.counters, **supervision.counters}
        return replace(loop.status, counters=counters)

    vitals = {
        "loop": loop.vitals,
        "leadership": leader.vitals,
        "mirror": store.vitals,
        "actor": actor.vitals,
        "housekeeping": housekeeping.vitals,
    }
    if embedded is not None:
        keeper = EtcdKeeper(embedded, patient)
        keeper.start()
        stack.callback(keeper.stop)
        vitals["embedded_etcd"] = keeper.vitals
    if any(uses_tunnel(config, cloud) for cloud in provisioners):
        stack.enter_context(tunnels.started())
        vitals["tunnels"] = tunnels.vitals
    supervision = Supervision(vitals)
    curves = CurveKeeper(journal, leader, clock)
    metrics = Exporter(
        Observer(journal, leader),
        lambda: Picture(
            clock.now(),
            version,
            journal.read(),
            status(),
            leader.leading,
            supervision.parts,
            rules.budgets,
            actor.waits_s(),
        ),
    )
    servers = _serve_api(
        _Parts(config, identity, journal, leader, clock, version, provisioners, watchers, status, curves),
        metrics.text,
        stack,
    )
    for name, server in servers.items():
        supervision.watch(name, server.vitals)
    housekeeping.start()
    stack.callback(housekeeping.stop)
    leader.start()
    log.info("spotsupd is ready", version=version, socket=str(config.socket), clouds=", ".join(provisioners))
    notify("READY=1")
    _run_loop(
        loop,
        housekeeping,
        (
            curves,
            PoolKeeper(journal, leader, clock),
            sweeps,
            _no_leader(loop, leader, journal, channels, senders, clock),
        ),
        metrics.observer,
        supervision,
        clock,
        wake,
        stop,
        config.timing.tick_s,
    )
    notify("STOPPING=1")
    log.info("spotsupd stops; nodes go on training")


def _senders(config: Config, clock: Clock) -> dict[str, Sender]:
    """Return the senders of alerts, by channel; each delivery has a time limit."""
    return {name: BoundedSender(name, sender) for name, sender in open_senders(config, clock.now).items()}


def _no_leader(
    loop: Loop,
    leader: Leadership,
    journal: Journal,
    channels: Sequence[Channel],
    senders: Mapping[str, Sender],
    clock: Clock,
) -> NoLeaderWatch:
    def problem() -> str:
        return why_undecided(
            loop.status, journal.read(), leader.etcd_problem(), leading=leader.leading, leader=leader.leader
        )

    used = {each.name: (each, senders[each.name]) for each in channels}
    return NoLeaderWatch(problem, used, clock, f"{socket.gethostname()}:{os.getpid()}")


def _users(etcd: Etcd, login: EtcdLogin, journal: Journal, identity: Identity) -> JobUsers | None:
    """Return the users of an etcd that has them. Raises StartError if the daemon's may not manage them."""
    if not login.user:
        return None
    users = JobUsers(etcd, journal.keys, identity, login.ca_text, journal.etcd_use)
    try:
        users.check()
        with contextlib.closing(login.anonymous().connect()) as anonymous:
            if problem := open_to_everyone(anonymous):
                log.warning(problem)
    except EtcdUnavailableError as error:
        raise JournalUnavailableError(str(error)) from error
    return users


def _ways_to_etcd(
    config: Config, login: EtcdLogin, users: JobUsers | None
) -> tuple[Callable[[NodeRecord], tuple[str, ...]], Callable[[JobRecord], bytes]]:
    """Return where a node reaches etcd, and how it logs in there."""

    def endpoints_for(node: NodeRecord) -> tuple[str, ...]:
        if uses_tunnel(config, node.offer.cloud):
            return tunnel_endpoints(node.id, login.endpoints)
        return login.node_endpoints

    def access_for(job: JobRecord) -> bytes:
        if users is not None:
            return users.ensure(job).encode()
        return EtcdAccess(ca=login.ca_text()).encode() if login.ca else b""

    return endpoints_for, access_for


def _run_loop(  # noqa: PLR0913, PLR0917 - it connects all parts
    loop: Loop,
    housekeeping: Housekeeping,
    keepers: Sequence[CurveKeeper | PoolKeeper | SweepKeeper | NoLeaderWatch],
    observer: Observer,
    supervision: Supervision,
    clock: Clock,
    wake: threading.Event,
    stop: threading.Event,
    tick_s: float,
) -> None:
    """Tick when woken and at least every `tick_s`, until `stop`. Raises ThreadFailedError.

    systemd's watchdog is fed only if the other threads are well, too.
    """
    reported = ""
    while not stop.is_set():
        wake.clear()
        began = time.monotonic()
        loop.tick()
        observer.ticked(time.monotonic() - began)
        observer.follow()
        housekeeping.follow(clock.now())
        for keeper in keepers:
            keeper.follow()
        stop.wait(rest_s(time.monotonic() - began))
        supervision.check()
        notify("WATCHDOG=1")
        if loop.status.headline != reported:
            reported = loop.status.headline
            notify(f"STATUS={reported}")
        wake.wait(tick_s)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the API is over."""

    config: Config
    identity: Identity
    journal: Journal
    leader: Leadership
    clock: Clock
    version: str
    provisioners: Mapping[str, Provisioner]
    watchers: _Watchers
    status: Callable[[], Status]
    curves: CurveKeeper


def _api_of(parts: _Parts) -> tuple[FastAPI, Service]:
    """Return the API with the dashboard, and what it is over."""
    from supervisor.api.app import create_app
    from supervisor.api.daemon.adoption import Adoption
    from supervisor.api.jobs.report import on_demand_prices
    from supervisor.api.nodes.logins import add_logins, login_row
    from supervisor.api.quote import Quotes
    from supervisor.api.secrets import Secrets, add_secrets
    from supervisor.api.security.audit import writer
    from supervisor.api.security.gate import Users
    from supervisor.api.security.tls import own_ca
    from supervisor.api.service import Service
    from supervisor.api.submit.explain import Explainer
    from supervisor.api.sweeps import Sweeps, add_sweeps
    from supervisor.web.prices import PriceBook
    from supervisor.web.routes import add_dashboard
    from supervisor.web.source import source_of

    config, journal, clock, provisioners = parts.config, parts.journal, parts.clock, parts.provisioners
    rules, wait_for = config.rules(), parts.watchers.waiter(journal)
    quotes = Quotes(provisioners, prices=config.prices, budgeted=rules.budgets.any)
    service = Service(
        journal,
        parts.leader,
        clock,
        list(provisioners),
        wait_for,
        quotes.quote,
        hosted=[name for name in provisioners if (found := config.cloud(name)) and found.shares_folder],
        curve=parts.curves.curve,
        queue=config.queue.rules(),
        budgeted=rules.budgets.any,
    )
    prices = partial(on_demand_prices, quotes)
    users = Users(lambda: journal.read().tokens, clock.now, writer(journal))
    app = create_app(
        service,
        parts.status,
        clock,
        parts.version,
        Adoption(journal, provisioners, parts.identity.owner(config.cluster), clock, wait_for),
        Explainer(config, str(Path.home())),
        prices,
        users=users,
        audit=journal.audit,
        ca=partial(own_ca, config),
        listen=parts.watchers.listen,
    )
    shown = source_of(
        service, journal, parts.status, PriceBook(prices, clock), clock, parts.version, config.cluster, rules
    )
    add_dashboard(app, shown, users)
    add_logins(app, service.jobs, partial(login_row, config, parts.identity), clock)
    add_sweeps(app, Sweeps(service, journal, clock, config.queue.rules()))
    add_secrets(app, Secrets(journal, parts.identity, clock))
    return app, service


def _serve_api(parts: _Parts, metrics: Callable[[], bytes], stack: contextlib.ExitStack) -> dict[str, ApiServer]:
    from supervisor.api.daemon.metrics import add_metrics, metrics_app
    from supervisor.api.nodes.targets import targets_app
    from supervisor.api.security.tls import certificate_of
    from supervisor.api.security.unix_socket import bind_socket
    from supervisor.api.serving import ApiServer, bind_address

    config = parts.config
    app, service = _api_of(parts)
    add_metrics(app, metrics)
    servers = {"api": ApiServer(app, bind_socket(config.socket, config.api.group))}
    stack.callback(servers["api"].stop)
    if config.api.targets:
        servers["api_targets"] = ApiServer(targets_app(service.jobs.all), bind_address(config.api.targets))
        stack.callback(servers["api_targets"].stop)
    if config.metrics.listen:
        listening = bind_address(config.metrics.listen, "metrics.listen")
        servers["metrics"] = ApiServer(metrics_app(metrics), listening)
        stack.callback(servers["metrics"].stop)
    if config.api.listen:
        certificate = certificate_of(config, socket.gethostname())
        servers["api_https"] = ApiServer(app, bind_address(config.api.listen, "api.listen"), certificate)
        stack.callback(servers["api_https"].stop)
    for server in servers.values():
        server.start()
    return servers


class _Watchers:
    """Wakes the loop, and requests that wait for the mirror, when the journal changes."""

    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, call: Callable[[], None]) -> None:
        """Have it called after each change; before the daemon serves."""
        self._listeners.append(call)

    def changed(self) -> None:
        self._wake.set()
        for call in self._listeners:
            call()
        with self._changed:
            self._changed.notify_all()

    def waiter(self, journal: Journal) -> Callable[[Callable[[Reading], bool], float], bool]:
        def wait_for(predicate: Callable[[Reading], bool], timeout_s: float) -> bool:
            deadline = time.monotonic() + timeout_s
            with self._changed:
                while not predicate(journal.read()):
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        return False
                    self._changed.wait(left_s)
            return True

        return wait_for
