"""Handlers of one job as threads of this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from spotsup_trainer.etcd import Etcd
from spotsup_trainer.rendezvous.handler import SpotsupRendezvousHandler, handler_from
from spotsup_trainer.rendezvous.membership import Stay
from spotsup_trainer.wire import Hint, Keys, Member, Round, Tombstone, decode, encode
from torch.distributed.elastic.rendezvous.api import RendezvousParameters

from tests.e2e.launching import eventually

KEYS = Keys("test")
JOB = "job"
TTL_S = 2.0


class Handlers:
    """Handlers of one job, each waiting in a thread of its own."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.etcd = Etcd([endpoint])
        self.made: dict[str, SpotsupRendezvousHandler] = {}
        self._threads = ThreadPoolExecutor(16)

    def make(
        self, node: str, minimum: int = 1, maximum: int = 4, *, via: str = "", **config: Any
    ) -> SpotsupRendezvousHandler:
        """A handler, which reaches etcd `via` other endpoints if given."""
        address = f"127.0.0.{30 + len(self.made)}"
        config = {"lease_ttl": TTL_S, "cluster": "test", "node": node} | config
        parameters = RendezvousParameters("spotsup", via or self.endpoint, JOB, minimum, maximum, address, **config)
        self.made[node] = handler_from(parameters, {}, app_failures=0)
        return self.made[node]

    def hint(self, members: str, minimum: int = 1, maximum: int = 4) -> None:
        """Say, as the daemon would, who should be in the round."""
        self.etcd.put(KEYS.hint(JOB), encode(Hint(tuple(members), minimum, maximum, "test")))

    def write_tombstone(self, node: str) -> None:
        """Say, as the daemon would, that a node is gone."""
        self.etcd.put(KEYS.tombstone(JOB, node), encode(Tombstone(node, "test", 0.0)))

    def join(self, *members: str) -> dict[str, Future[Any]]:
        return {node: self._threads.submit(self.made[node].next_rendezvous) for node in members}

    def form(self, *members: str) -> list[Any]:
        """Have them all in one round; what each got."""
        return [future.result(timeout=90) for future in self.join(*members).values()]

    def round(self) -> Round:
        found = self.etcd.get(KEYS.round(JOB))
        assert found is not None
        return decode(Round, found.value)

    def member(self, node: str) -> Member | None:
        found = self.etcd.get(KEYS.member(JOB, node))
        return decode(Member, found.value) if found else None

    def steady(self, *members: str, until: Callable[[], object], timeout_s: float = 60.0) -> None:
        """Look after the members' rounds, as launchers do, until something is true; none may have reason to stop."""
        deadline = time.monotonic() + timeout_s
        while not until():
            for node in members:
                standing = self.made[node].standing()
                assert isinstance(standing, Stay), f"{node}: {standing}"
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def steady_for(self, duration_s: float, *members: str) -> None:
        """The same for some time."""
        end = time.monotonic() + duration_s
        self.steady(*members, until=lambda: time.monotonic() >= end)

    def live(self, *members: str) -> bool:
        """Whether etcd is there for all of them."""
        return all(self.made[node].client.snapshot().live for node in members)

    def stands(self, node: str, how: type) -> None:
        eventually(f"{node} stands {how.__name__}", lambda: isinstance(self.made[node].standing(), how))

    def close(self) -> None:
        for handler in self.made.values():
            handler.interrupted = lambda: True
        self._threads.shutdown()
        for handler in self.made.values():
            handler.shutdown()
        self.etcd.close()
