"""The daemon of `make bench-api`: that of `make bench-control`, on the same paper cloud, with API and dashboard.

`python -m benchmarks.api.daemon ENDPOINT FOLDER` serves HTTPS until its stdin ends, once it has printed a line of JSON:
its port, and the tokens of its users.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.control.daemon import CLUSTER, Bench
from supervisor.access import Role, TokenRecord, sha256_of, token_text
from supervisor.api.app import create_app
from supervisor.api.jobs.report import OnDemand
from supervisor.api.security.gate import Users
from supervisor.api.security.tls import certificate_of
from supervisor.api.service import Service
from supervisor.api.serving import ApiServer, bind_address
from supervisor.config import parse_config
from supervisor.planner.world import Rules
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.descriptors import raise_limit
from supervisor.runtime.garbage import collect_all_seldom
from supervisor.web.prices import PriceBook
from supervisor.web.routes import add_dashboard
from supervisor.web.source import source_of

USERS = 40
DAY_S = 86400.0


def users_of(now: float) -> tuple[dict[str, TokenRecord], list[str]]:
    """Records by id, and the tokens."""
    records, texts = {}, []
    for number in range(USERS):
        secret = bytes([number + 1]) * 32
        record = TokenRecord(f"{number:012x}", f"user-{number}", Role.VIEWER, sha256_of(secret), now, now + DAY_S)
        records[record.id] = record
        texts.append(token_text(record.id, secret))
    return records, texts


class Changes:
    """Calls who listens after each change of the journal."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def listen(self, call: Callable[[], None]) -> None:
        """Before it serves."""
        self._calls.append(call)

    def changed(self) -> None:
        """From the mirror's thread."""
        for call in self._calls:
            call()


def main(endpoint: str, folder: Path) -> None:
    """Serve until stdin ends."""
    # The answer has the pipe for itself: the daemon's threads log to standard output, too.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    raise_limit()
    collect_all_seldom()
    changes, clock = Changes(), SystemClock()
    bench = Bench(endpoint, changes.changed)
    bench.started()
    service = Service(bench.journal, bench.leader, clock, ["local"], bench.wait_for, hosted=["local"])
    records, texts = users_of(time.time())
    users = Users(lambda: records)
    app = create_app(service, bench.status, clock, "bench", users=users, listen=changes.listen)
    prices = PriceBook(lambda _: OnDemand({}, "no cloud is asked"), clock)
    source = source_of(service, bench.journal, bench.status, prices, clock, "bench", CLUSTER, Rules())
    add_dashboard(app, source, users)
    config = parse_config({"state_dir": str(folder), "api": {"listen": "127.0.0.1:0"}}, "bench-api")
    listening = bind_address("127.0.0.1:0", "api.listen")
    server = ApiServer(app, listening, certificate_of(config, ""))
    server.start()
    print(json.dumps({"port": listening.getsockname()[1], "tokens": texts}), file=answers, flush=True)
    sys.stdin.read()
    server.stop()
    bench.obey({"stop": True})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
