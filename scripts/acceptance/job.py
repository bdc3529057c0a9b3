"""What is shown by a job of two nodes that writes its checkpoints to one storage."""

from __future__ import annotations

import json
import time
from typing import Any

from bootstrap.agent_unit import unit_name
from scripts.acceptance.site import STORAGE, Site
from scripts.acceptance.table import Results, expect
from scripts.acceptance.tried import MOUNT
from scripts.stack import ROOT, StackError

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
nodes: {{min: 2, desired: 2, max: 2}}
code: {code}
run: >-
  char_transformer.py --steps 1000000 --checkpoint-every {every} --global-batch 4 --seq 16 --dim 16 --layers 1
  --text-mb 0.05 --step-time 0.5
storage:
  - {{mount: {mount}, nfs: "{source}"}}
"""


class Job:
    """The job on `source`."""

    def __init__(self, site: Site, results: Results, source: str) -> None:
        self._site, self._results, self._source = site, results, source
        self._said = ""

    def submit(self) -> None:
        """Through spotsupctl."""
        file = self._site.stack.folder / "job.yaml"
        code = json.dumps(str(ROOT / "trainer" / "examples"))
        file.write_text(_FILE.format(name=JOB, code=code, every=EVERY, mount=MOUNT, source=self._source))
        self._site.stack.ask("submit", str(file))

    def train(self) -> None:
        """Two machines, from nothing."""
        with self._results.row(UNITS) as row:
            began = time.monotonic()
            self._until(
                "two nodes to train", lambda job: job["nodes"]["training"] == 2 and job["step"] >= EVERY, BOOT_S
            )
            took_s = time.monotonic() - began
            for node in self.nodes():
                said = self._site.run(node, f"systemctl show -p Slice -p ActiveState --value {unit_name(node)}")
                expect(sorted(said.split()) == ["active", "spotsup.slice"], f"the agent of {node}: {said!r}")
            row.words = f"{', '.join(self.nodes())}: step {self.job()['step']} {took_s:.0f} s after it was looked for"

    def share(self) -> None:
        """Options, a file, and a checkpoint, as each side sees it."""
        one, other = self.nodes()
        with self._results.row(SHARED) as row:
            mounted = self._site.run(one, f"awk '$2 == \"{MOUNT}\" {{ print $3, $4 }}' /proc/mounts")
            options = mounted.partition(" ")[2].split(",")
            expect(set(OPTIONS) <= {*options}, f"{MOUNT} is {mounted!r}; {', '.join(OPTIONS)} should be there")
            self._site.run(one, f"echo from {one} >{MOUNT}/hello && sync {MOUNT}/hello")
            read = self._site.run(other, f"cat {MOUNT}/hello")
            expect(read == f"from {one}", f"{other} reads {read!r}")
            newest = f"cd {MOUNT} && find . -type f -size +0 -path '*checkpoint*' ! -name '.*' | sort | head -n 1"
            checkpoint = self._site.run(other, newest)
            expect(bool(checkpoint), "there is no checkpoint on the storage")
            there = self._site.run(STORAGE, f"cd /srv/export && sudo -n sha256sum '{checkpoint}'").split()[0]
            here = self._site.run(other, f"cd {MOUNT} && sha256sum '{checkpoint}'").split()[0]
            expect(here == there, f"{checkpoint} is another file on {other} than on its server")
            row.words = f"{mounted.split()[0]} {','.join(OPTIONS)}; {checkpoint} is the same file on {other}"

    def freeze(self) -> None:
        """The whole server stands still, and comes back."""
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
                self._site.stack.cloud("thaw", STORAGE)
            thawed = self.job()["step"]
            self._until("training to go on", lambda job: job["step"] >= thawed + 2 * EVERY, STEPS_S)
            expect(self.nodes() == nodes, f"the nodes were {nodes} and are {self.nodes()}")
            row.words = (
                f"step {before} before, {thawed} at the thaw, {self.job()['step']} now; same nodes; "
                f"{asked} questions, the slowest took {slowest:.1f} s"
            )

    def freeze_for_ever(self) -> None:
        """It does not come back."""
        self._freeze()

    def cancel(self) -> None:
        """Until nothing of its machines is listed."""
        self._site.stack.ask("cancel", JOB)
        self._site.stack.wait_for(lambda: not self._running(), 300.0, "the job's machines to be released")

    def job(self) -> dict[str, Any]:
        """What `spotsupctl status` says."""
        found: dict[str, Any] = self._site.stack.ask("status", JOB)
        return found

    def nodes(self) -> list[str]:
        """Those that are not gone."""
        return sorted(str(node["id"]) for node in self.job()["node_list"] if node["state"] != "gone")

    def _freeze(self) -> None:
        self._results.tell("the NFS server is stopped (SIGSTOP to its QEMU)")
        self._site.stack.cloud("freeze", STORAGE)

    def _running(self) -> list[str]:
        listed = self._site.cloud.instances(self._site.config.cluster, 30.0)
        return [each.id for each in listed if each.state.value != "terminated"]

    def _until(self, what: str, holds: Any, timeout_s: float) -> None:
        def look() -> bool:
            job = self.job()
            if job["sentence"] != self._said:
                self._said = job["sentence"]
                self._results.tell(f"  {job['state']}, step {job['step']}: {job['sentence']}")
            if job["state"] in {"failed", "cancelled", "succeeded"}:
                raise StackError(f"the job {job['state']} while waiting for {what}: {job['reason']}")
            return bool(holds(job))

        self._site.stack.wait_for(look, timeout_s, what, each=lambda: time.sleep(1.0))
