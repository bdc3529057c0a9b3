"""torch's rendezvous on etcd v3.

Event-driven: one key per member under a lease, one compare-and-swap per round, a watch instead of polls. The round's
TCPStore is new each time, in the launcher of rank 0, on a socket that was bound before its port was published.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

from torch.distributed import DistError, TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from spotsup_trainer.etcd.access import access_from
from spotsup_trainer.rendezvous import conf as rdzv_conf
from spotsup_trainer.rendezvous.abandonable_call import call_while
from spotsup_trainer.rendezvous.client import RendezvousClient, RendezvousConfig
from spotsup_trainer.rendezvous.heartbeat import Heartbeat
from spotsup_trainer.rendezvous.membership import Standing, Stay, Wait, gone, standing, still_stopping, writer
from spotsup_trainer.rendezvous.stores import WatchedStore, first_line, reach
from spotsup_trainer.rendezvous.view import Rules, View
from spotsup_trainer.timing import Patience
from spotsup_trainer.wire import DEFAULT_LEASE_TTL_S, Failure, Result, Round

BACKEND = "spotsup"
_JOIN_TIMEOUT_S = 600.0  # torch's own default
_STORE_TIMEOUT_S = 900.0  # torch's own default
_POLL_S = 0.1  # how late a signal is noticed while we wait; keys are noticed at once
_FLUSH_TIMEOUT_S = 2.0
_LOG_AFTER_S = 1.0
_UNHEALTHY_CHARS = 200
_BACKLOG = 4096  # all workers of a big job may connect before the store accepts

log = logging.getLogger(__name__)


class SpotsupRendezvousHandler(RendezvousHandler):  # type: ignore[misc]  # mypy does not read torch
    """Forms rounds with the other launchers of the job. For one thread.

    `interrupted` is called while waiting; once it returns True, `next_rendezvous` raises RendezvousGracefulExitError.
    """

    def __init__(self, client: RendezvousClient, *, join_timeout_s: float, store_timeout_s: float) -> None:
        self.client = client
        self.current: Round | None = None
        # When it was last seen that a member of the round before is gone; monotonic, None if none was.
        self.lost_at: float | None = None
        self._gone: frozenset[str] = frozenset()
        self._noted: object = None
        self.interrupted: Callable[[], bool] = lambda: False
        self._join_timeout_s = join_timeout_s
        self._store_timeout = timedelta(seconds=store_timeout_s)
        self._listener: socket.socket | None = None
        self._store: TCPStore | None = None
        self._heartbeat: Heartbeat | None = None
        self._open = True
        client.open()

    # -- torch's interface ---------------------------------------------------------------------------------

    def get_backend(self) -> str:
        """`spotsup`."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """True: workers use the launcher's TCPStore, which is new for each round, so nothing in it is stale."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait to be in a round. etcd may be away meanwhile.

        Raises RendezvousClosedError when the job has ended or this node has a tombstone, RendezvousTimeoutError after
        the join time limit (in which outages of etcd do not count, see Patience), RendezvousGracefulExitError when
        interrupted.
        """
        return self.join()

    def join(
        self, *, failure: Failure | None = None, parked: bool = False, unhealthy: str = "", checkpoints: int = 0
    ) -> RendezvousInfo:
        """`next_rendezvous`, with how the last round ended here: by the program's failure, or with a checkpoint.

        `unhealthy`: why this node's GPUs cannot train. `checkpoints`: how many it saw completed.
        """
        patience = Patience(self._join_timeout_s, time.monotonic())
        self._end_heartbeat()
        while True:
            self._announce_waiting(failure, parked=parked, unhealthy=unhealthy, checkpoints=checkpoints)
            formed = self.current = self._wait_for_round(patience)
            store = self._store_of(formed, patience)
            if store is not None:
                break
            log.warning("round %d broke before it began", formed.number)
            failure, parked, checkpoints = None, False, 0
        # Kept for as long as the round: others may connect to the leader's store after the caller has dropped it.
        self._store = store
        self._begin_heartbeat(formed, self.client.config.node)
        self.client.announce_running(formed)
        leader = formed.members[0]
        return RendezvousInfo(
            store,
            formed.nodes().index(self.client.config.node),
            len(formed.members),
            RendezvousStoreInfo(leader.addr, leader.store_port),
        )

    def standing(self) -> Standing:
        """Return whether this node may go on in its round. While etcd is away nothing changes: training outlives it
        (P7).

        A round that etcd has lost is written again.
        """
        if self.current is None:
            return Stay()
        self._note_losses(self.client.snapshot().view)
        self.client.restore_round(self.current, running=True)
        return self._standing_in(self.current)

    def num_nodes_waiting(self) -> int:
        """Return for plain torchrun: more than 0 when it should stop its workers and form a new round, for any
        reason."""
        return 0 if isinstance(self.standing(), Stay) else 1

    def is_closed(self) -> bool:
        """True if the job has a result."""
        return self.client.snapshot().view.result is not None

    def may_rejoin(self) -> bool:
        """True if a further round may have this node: the job has no result, and the daemon has not given it up."""
        view = self.client.snapshot().view
        return view.result is None and self.client.config.node not in view.tombstones

    def set_closed(self) -> None:
        """End the job on all nodes. Raises EtcdError."""
        number = self.current.number if self.current else 0
        self.client.finish(Result("failure", "the rendezvous was closed", number))

    def get_run_id(self) -> str:
        """Return the job's name."""
        return self.client.config.job

    def shutdown(self) -> bool:
        """Leave: the others go on without this node. May be called twice."""
        return self._close(linger=False)

    def leave(self, *, parked: bool, store_s: float) -> None:
        """Leave the round once its workers have ended here, `parked` if after a complete checkpoint. Then this node's
        key stays until its lease ends: it shows the others, which may still be parking, that the round is not broken,
        and that they need not wait for this node. The round's store, where it is here, stays for them, too: for
        `store_s` seconds at most.
        """
        self.client.announce(state="leaving", parked=parked)
        self.client.flush(_FLUSH_TIMEOUT_S)
        until = time.monotonic() + store_s
        while self._has_store_for_others() and (left_s := until - time.monotonic()) > 0:
            self.client.wait_change(min(_POLL_S, left_s))
        if parked:
            self._close(linger=True)

    # -- inside --------------------------------------------------------------------------------------------

    def _has_store_for_others(self) -> bool:
        node, now = self.client.config.node, self.client.snapshot()
        leads = self.current is not None and self.current.members[0].node == node and now.view.round == self.current
        return leads and now.live and bool(still_stopping(now.view) - {node})

    def _close(self, *, linger: bool) -> bool:
        if self._open:
            self._open = False
            self._end_heartbeat(wait=True)
            self._close_listener()
            self.client.close(linger=linger)
        return True

    def _announce_waiting(self, failure: Failure | None, *, parked: bool, unhealthy: str, checkpoints: int) -> None:
        """Announce a new socket for each round: the last one may have become a store that workers still talk to."""
        self._close_listener()
        config = self.client.config
        self._listener = socket.create_server(
            (config.addr, 0), family=_family(config.addr), backlog=_BACKLOG, reuse_port=False
        )
        port = self._listener.getsockname()[1]
        self.client.announce(
            state="waiting",
            store_port=port,
            round=self._last_round(),
            failure=failure,
            parked=parked,
            unhealthy=unhealthy[:_UNHEALTHY_CHARS],
            checkpoints=checkpoints,
        )

    def _note_losses(self, view: View) -> None:
        """Note the losses of the round that ends, or has just ended."""
        if self.current is None or view is self._noted:
            return
        self._noted, found = view, gone(view, self.current)
        if not found <= self._gone:
            self.lost_at = time.monotonic()
        self._gone = found

    def _last_round(self) -> int:
        return self.current.number if self.current else 0

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _wait_for_round(self, patience: Patience) -> Round:
        config, waiting = self.client.config, _Waiting()
        while True:
            now = self.client.snapshot()
            self._note_losses(now.view)
            self._raise_if_over(patience, waiting.reason)
            formed = now.view.round
            if (
                formed is not None
                and formed.number > self._last_round()
                and any(m.node == config.node and m.incarnation == config.incarnation for m in formed.members)
            ):
                return formed
            wait_s, patient = _POLL_S, False
            if now.live and not (self.current and self.client.restore_round(self.current, running=False)):
                decision = self.client.decide(self._heard(now.view, now.view.round))
                # When a round ends all members change: who does not write the next one looks at many changes together.
                patient = writer(decision) not in {"", config.node}
                if isinstance(decision, Wait):
                    wait_s = min(_POLL_S, max(0.0, decision.until - time.monotonic()))
                    waiting.log(decision.reason)
                else:
                    wait_s = min(_POLL_S, self.client.try_write(decision))
            self.client.wait_change(wait_s, patient=patient)

    def _raise_if_over(self, patience: Patience, reason: str) -> None:
        now, node = self.client.snapshot(), self.client.config.node
        if now.view.result is not None:
            raise RendezvousClosedError(f"the job has ended: {now.view.result.message}")
        if node in now.view.tombstones:
            raise RendezvousClosedError(f"the daemon has given node {node} up; it cannot rejoin under this name")
        if self.interrupted():
            raise RendezvousGracefulExitError("asked to leave")
        if patience.is_over(time.monotonic(), away=now.away):
            cause = reason if now.live else f"etcd does not answer at {', '.join(self.client.config.endpoints)}"
            raise RendezvousTimeoutError(f"no round within {self._join_timeout_s:.0f} s: {cause}")

    def _store_of(self, formed: Round, patience: Patience) -> TCPStore | None:
        """Return the round's store; None when the round broke before all had found it."""
        leader = formed.members[0]
        assert self._listener is not None
        if leader.node == self.client.config.node:
            listener, self._listener = self._listener, None
            serve = partial(
                TCPStore,
                leader.addr,
                leader.store_port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
                timeout=self._store_timeout,
            )
            try:
                return serve()
            except NotImplementedError:  # torch 2.6: its store on libuv takes no socket that is bound already
                return serve(use_libuv=False)
        self._close_listener()
        return self._connect(formed, patience)

    def _standing_in(self, formed: Round) -> Standing:
        now = self.client.snapshot()
        if not now.live:
            return Stay()
        view = replace(now.view, heard=self._heard(now.view, formed))
        return standing(view, formed, self.client.config.node, time.monotonic())

    def _heard(self, view: View, formed: Round | None) -> frozenset[str]:
        """As in View. Asked only of members whose keys are missing; also by a launcher that is not in the round."""
        nodes = formed.nodes() if formed else ()
        missing = frozenset(node for node in nodes if node not in view.members and node not in view.tombstones)
        if formed is None or not missing:
            return frozenset()
        if self._heartbeat is None or self._heartbeat.round != formed.number:
            self._begin_heartbeat(formed, "")
        assert self._heartbeat is not None
        return self._heartbeat.heard(missing)

    def _begin_heartbeat(self, formed: Round, node: str) -> None:
        self._end_heartbeat()
        leader = formed.members[0]
        self._heartbeat = Heartbeat(formed, node, self.client.times, partial(WatchedStore, leader))
        self._heartbeat.start()

    def _end_heartbeat(self, *, wait: bool = False) -> None:
        if self._heartbeat is not None:
            self._heartbeat.close(wait=wait)
            self._heartbeat = None

    def _connect(self, formed: Round, patience: Patience) -> TCPStore | None:
        leader = formed.members[0]
        while self._is_worth_waiting_for(formed, patience):
            try:
                store = call_while(partial(reach, leader), partial(self._is_worth_waiting_for, formed, patience))
            except (OSError, DistError) as error:
                log.warning(
                    "cannot reach the store of %s at %s:%d: %s",
                    leader.node,
                    leader.addr,
                    leader.store_port,
                    first_line(error),
                )
                self.client.wait_change(_POLL_S)
                continue
            if store is not None:
                store.set_timeout(self._store_timeout)
                return store
        return None

    def _is_worth_waiting_for(self, formed: Round, patience: Patience) -> bool:
        self._raise_if_over(patience, f"the store of {formed.members[0].node} does not answer")
        return isinstance(self._standing_in(formed), Stay)


class _Waiting:
    """Logs why there is no round yet: each reason once, after it has lasted for a second."""

    def __init__(self) -> None:
        self.reason = ""
        self._since = 0.0
        self._logged = ""

    def log(self, reason: str) -> None:
        now = time.monotonic()
        if reason != self.reason:
            self.reason, self._since = reason, now
        elif reason != self._logged and now >= self._since + _LOG_AFTER_S:
            self._logged = reason
            log.info("no round yet: %s", reason)


def handler_from(
    params: RendezvousParameters, environ: Mapping[str, str], *, app_failures: int | None = None
) -> SpotsupRendezvousHandler:
    """`params.endpoint`: etcd's endpoints, separated by commas; `params.run_id`: the job.

    `--rdzv-conf` may set `cluster`, `node`, `multiple_of`, `lease_ttl`, `join_timeout` and `timeout` (the store's),
    times in seconds;
    cluster and node also come from SPOTSUP_CLUSTER and SPOTSUP_NODE_ID, etcd's CA, user and password from the file that
    SPOTSUP_ETCD_ACCESS names. Raises ValueError for what cannot be right.
    """
    # Each connection to a TCPStore does a reverse lookup of its address, for a log text (SocketImpl in torch's
    # socket.cpp); a lost answer would block it for 5 s, glibc's default. Workers inherit this.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:3")
    endpoints = rdzv_conf.endpoints(params.endpoint)
    config = RendezvousConfig(
        cluster=rdzv_conf.name("cluster", params.get("cluster") or environ.get("SPOTSUP_CLUSTER") or "default"),
        job=rdzv_conf.name("--rdzv-id", params.run_id),
        node=rdzv_conf.name("node", params.get("node") or environ.get("SPOTSUP_NODE_ID") or _default_node()),
        incarnation=uuid.uuid4().hex[:12],
        addr=params.local_addr or _own_addr(endpoints[0]),
        endpoints=endpoints,
        lease_ttl_s=rdzv_conf.seconds(params, "lease_ttl", DEFAULT_LEASE_TTL_S),
        access=access_from(environ),
    )
    multiple = rdzv_conf.count(params, "multiple_of")
    handler = SpotsupRendezvousHandler(
        RendezvousClient(config, Rules(params.min_nodes, params.max_nodes, app_failures, multiple_of=multiple)),
        join_timeout_s=rdzv_conf.seconds(params, "join_timeout", _JOIN_TIMEOUT_S),
        store_timeout_s=rdzv_conf.seconds(params, "timeout", _STORE_TIMEOUT_S),
    )
    # torchrun does not call shutdown() when a signal ends it: without this the others would wait for the lease.
    atexit.register(handler.shutdown)
    return handler


def _default_node() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _own_addr(endpoint: str) -> str:
    """Return the address from which this machine reaches etcd: most likely its peers reach it there, too."""
    url = urlsplit(endpoint)
    found = socket.getaddrinfo(url.hostname, url.port or 2379, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # a datagram socket: sends nothing
        return str(probe.getsockname()[0])


def _family(addr: str) -> socket.AddressFamily:
    return socket.getaddrinfo(addr, 0, type=socket.SOCK_STREAM)[0][0]
