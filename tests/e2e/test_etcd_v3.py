"""`--rdzv-backend etcd-v3`: plain torchrun with torch's own handler, on a real etcd that goes away and comes back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.e2e.launching import Nodes, eventually, nodes
from tests.etcd_server import etcd_server

pytestmark = pytest.mark.e2e

# torch takes a node for dead after 3 s, and not after 15
CONF = "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1"
PATIENCE_S = 120.0  # torchrun starts all workers anew, and each imports torch: half a minute where others test, too
OUTAGE_S = 4.0  # longer than that: nobody's heartbeat is young enough when etcd is back


@pytest.mark.long
@pytest.mark.timeout(420)
def test_nodes_join_and_are_replaced_although_etcd_was_away(tmp_path: Path) -> None:
    with (
        etcd_server(tmp_path / "etcd") as server,
        nodes(
            server.endpoint,
            tmp_path,
            program={"session": "0"},
            module="torch.distributed.run",
            max_restarts=5,
            nnodes="2:3",
            backend="etcd-v3",
            rdzv_conf=CONF,
        ) as job,
    ):
        job.start("a", "b")
        steps_of(job, "a", "b")
        pids = {event["pid"] for event in job.events("step")}
        server.kill()
        time.sleep(OUTAGE_S)  # the time itself is what they must survive
        assert server.start()
        job.start("c")
        steps_of(job, "a", "b", "c")
        assert pids == {event["pid"] for event in job.events("step", world=2)}  # nobody was restarted for the outage
        job.kill("b")
        job.start("d")
        steps_of(job, "a", "c", "d")
        job.end_file.touch()
        assert [job.exit_code(node) for node in "acd"] == [0, 0, 0]
        kept = job.etcd.range("/torchrun/").kvs
        assert {kv.key.split("/")[2] for kv in kept} == {"job"}
        assert all(kv.lease for kv in kept)  # none stays for ever


def steps_of(job: Nodes, *together: str) -> None:
    """Wait for a step of just these nodes, each after now."""
    since = time.time()

    def look() -> bool:
        found = job.events("step", world=len(together))
        return {event["node"] for event in found if event["at"] > since} == set(together)

    try:
        eventually(f"a step of {', '.join(together)}", look, PATIENCE_S)
    except AssertionError as error:
        last = {event["node"]: event for event in job.events()}
        logs = "".join(f"{node}: {event}\n" for node, event in sorted(last.items()))
        logs += "\n".join(f"--- {node}\n{job.log(node).read_text()[-3000:]}" for node in job.launchers)
        raise AssertionError(f"{error}\n{logs}") from None
