"""Checks with a job of two nodes that write checkpoints to one shared storage."""

from __future__ import annotations

import json
import time
from typing import Any

from bootstrap.agent.unit import unit_name
from tests.acceptance.checks import MOUNT
from tests.acceptance.table import Results, expect
from tests.acceptance.testbed import BARE_NODE, STORAGE, Testbed
from tools.stack import ROOT, StackError

JOB = "train"
EVERY = 5
FROZEN_S = 60.0
BOOT_S = 900.0
STEPS_S = 600.0
OPTIONS = ("vers=4.1", "hard", "timeo=600", "retrans=2", "nconnect=4", "noresvport")

UNITS = "two bare machines become nodes that train: agents as units in spotsup.slice"
SHARED = "the storage is mounted with our options; what one node writes the other reads"
FROZEN = f"storage frozen for {FROZEN_S:.0f} s: the daemon answers, no node is lost, training goes on"
GONE = "after release no machine, process, port or file is left"

_FILE = """\
name: {name}
nodes: {{min: {nodes}, desired: {nodes}, max: {nodes}}}
code: {code}
run: >-
  char_transformer.py --steps 1000000 --checkpoint-every {every} --global-batch 4 --seq 16 --dim 16 --layers 1
  --text-mb 0.05 --step-time 0.5
storage:
  - {{mount: {mount}, nfs: "{source}"}}
"""

# A hard link of our own, as old checkpoints are removed during training.
_KEEP = r"""
cd /srv/export
for _ in 1 2 3 4 5 6 7 8 9 10; do
    file=$(sudo -n find . -path '*/step_[0-9]*/*' ! -path '*.*.*/*' -type f -size +0 | sort | tail -n 1)
    [ -z "$file" ] || ! sudo -n ln -f "$file" kept 2>/dev/null || break
    sleep 1
done
[ -e kept ] || { echo "no checkpoint is on the storage" >&2; exit 1; }
echo "$(sudo -n sha256sum kept | cut -d' ' -f1) $(basename "$(dirname "$file")")"
"""


class Job:
    """The job on `source`."""

    def __init__(self, testbed: Testbed, results: Results, source: str, nodes: int = 2) -> None:
        self._testbed, self._results, self._source, self._number = testbed, results, source, nodes
        self._said = ""

    def submit(self) -> None:
        """Through spotsupctl."""
        file = self._testbed.stack.folder / "job.yaml"
        code = json.dumps(str(ROOT / "trainer" / "examples"))
        file.write_text(
            _FILE.format(name=JOB, nodes=self._number, code=code, every=EVERY, mount=MOUNT, source=self._source)
        )
        self._testbed.stack.ask("submit", str(file))

    def train(self) -> None:
        """Two machines, from nothing."""
        with self._results.row(UNITS) as row:
            began = time.monotonic()
            self._until(
                "its nodes to train",
                lambda job: job["nodes"]["training"] == self._number and job["step"] >= EVERY,
                BOOT_S,
            )
            took_s = time.monotonic() - began
            for node in self.nodes():
                output = self._testbed.run(node, f"systemctl show -p Slice -p ActiveState --value {unit_name(node)}")
                expect(sorted(output.split()) == ["active", "spotsup.slice"], f"the agent of {node}: {output!r}")
            row.observed = (
                f"{', '.join(self.nodes())}: step {self.job()['step']} {took_s:.0f} s after it was looked for"
            )

    def share(self) -> None:
        """Mount options, a file and a checkpoint, as seen from both nodes."""
        one, *others = (str(n["id"]) for n in sorted(self._living(), key=lambda node: int(node["rank"])))
        other = others[0] if others else BARE_NODE
        with self._results.row(SHARED) as row:
            mounted = self._testbed.run(one, f"awk '$2 == \"{MOUNT}\" {{ print $3, $4 }}' /proc/mounts")
            options = mounted.partition(" ")[2].split(",")
            expect(set(OPTIONS) <= {*options}, f"{MOUNT} is {mounted!r}; {', '.join(OPTIONS)} should be there")
            self._testbed.run(one, f"echo from {one} >{MOUNT}/hello && sync {MOUNT}/hello")
            read = self._testbed.run(other, f"cat {MOUNT}/hello")
            expect(read == f"from {one}", f"{other} reads {read!r}")
            there, name = self._testbed.run(STORAGE, _KEEP).split()
            here = self._testbed.run(other, f"sha256sum {MOUNT}/kept").split()[0]
            expect(here == there, f"{other} reads another {name} than there is on the server")
            row.observed = (
                f"{mounted.split()[0]} {','.join(OPTIONS)}; {name} by {one} is read on {other}, byte for byte"
            )

    def freeze(self) -> None:
        """The NFS server freezes and comes back."""
        with self._results.row(FROZEN) as row:
            nodes, before = self.nodes(), self.job()["step"]
            self._freeze()
            try:
                asked, slowest = 0, 0.0
                until = time.monotonic() + FROZEN_S
                while time.monotonic() < until:
                    began = time.monotonic()
                    self.job()
                    asked, slowest = asked + 1, max(slowest, time.monotonic() - began)
                    time.sleep(2.0)
            finally:
                self._testbed.stack.cloud("thaw", STORAGE)
            thawed = self.job()["step"]
            self._until("training to go on", lambda job: job["step"] >= thawed + 2 * EVERY, STEPS_S)
            expect(self.nodes() == nodes, f"the nodes were {nodes} and are {self.nodes()}")
            row.observed = (
                f"step {before} before, {thawed} at the thaw, {self.job()['step']} now; same nodes; "
                f"{asked} questions, the slowest took {slowest:.1f} s"
            )

    def freeze_for_ever(self) -> None:
        """The NFS server freezes and does not come back."""
        self._freeze()

    def cancel(self) -> None:
        """Wait until none of its machines is listed."""
        self._testbed.stack.ask("cancel", JOB)
        self._testbed.stack.wait_for(lambda: not self._running(), 300.0, "the job's machines to be released")

    def job(self) -> dict[str, Any]:
        """The job, from `spotsupctl status`."""
        found: dict[str, Any] = self._testbed.stack.ask("status", JOB)
        return found

    def nodes(self) -> list[str]:
        """Its nodes that are not GONE."""
        return sorted(str(node["id"]) for node in self._living())

    def _living(self) -> list[dict[str, Any]]:
        return [node for node in self.job()["node_list"] if node["state"] != "gone"]

    def _freeze(self) -> None:
        self._results.print_line("the NFS server is stopped (SIGSTOP to its QEMU)")
        self._testbed.stack.cloud("freeze", STORAGE)

    def _running(self) -> list[str]:
        listed = self._testbed.cloud.instances(self._testbed.identity.owner(self._testbed.config.cluster), 30.0)
        return [each.id for each in listed if each.state.value != "terminated"]

    def _until(self, what: str, holds: Any, timeout_s: float) -> None:
        def look() -> bool:
            job = self.job()
            if job["sentence"] != self._said:
                self._said = job["sentence"]
                self._results.print_line(f"  {job['state']}, step {job['step']}: {job['sentence']}")
            if job["state"] in {"failed", "cancelled", "succeeded"}:
                raise StackError(f"the job {job['state']} while waiting for {what}: {job['reason']}")
            return bool(holds(job))

        self._testbed.stack.wait_for(look, timeout_s, what, each=lambda: time.sleep(1.0))
