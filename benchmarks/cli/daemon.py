"""The daemon of `make bench-cli`: that of `make bench-control`, on the same paper cloud, with the API that users have.

`python -m benchmarks.cli.daemon ENDPOINT SOCKET` answers on SOCKET until its stdin ends, once it has printed "ready".
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.control.daemon import Bench
from supervisor.api.app import create_app
from supervisor.api.security.unix_socket import bind_socket
from supervisor.api.service import Service
from supervisor.api.serving import ApiServer
from supervisor.runtime.clock import SystemClock


def main(endpoint: str, socket: Path) -> None:
    """Serve until stdin ends."""
    bench = Bench(endpoint)
    bench.started()
    service = Service(bench.journal, bench.leader, SystemClock(), ["local"], bench.wait_for, hosted=["local"])
    server = ApiServer(create_app(service, bench.status, SystemClock(), "bench"), bind_socket(socket))
    server.start()
    print("ready", flush=True)
    sys.stdin.read()
    server.stop()
    bench.obey({"stop": True})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
