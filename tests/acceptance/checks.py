"""Checks on one bare machine, through `bootstrap.bootstrap` as the supervisor calls it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from bootstrap import (
    BootstrapError,
    Facts,
    Report,
    Setup,
    StepEvent,
    StepState,
    UnreachableError,
    bootstrap,
    pack_directory,
)
from bootstrap.agent.unit import unit_name
from bootstrap.gpu.facts import GpuFacts, read_gpu
from bootstrap.model import Skip
from bootstrap.steps import STEPS, Decision, Step
from bootstrap.templates import fill
from supervisor.spec import JobSpec, parse_spec
from tests.acceptance.table import BrokenError, Results, expect
from tests.acceptance.testbed import BARE_NODE, TRIES, Testbed
from tools.stack import ROOT

MOUNT = "/mnt/out"
BOOTSTRAP_S = 900.0
HELD_S = 15.0
UPDATERS = ("apt-daily", "apt-daily-upgrade", "unattended-upgrades")
DEAD_S = 300.0  # a probe's and a wait's own limits are 5 s and 120 s; the rest is emulation
GOLDEN = ROOT / "tests" / "golden" / "bootstrap" / "gpu"

LOCK = "apt's lock is held: bootstrap says who holds it, waits, and goes on"
REBOOT = "a reboot in the middle (GPU facts are recorded ones): it comes back and ends"
HYGIENE = "updates are masked, the kernel is held, the dead-man switch is armed"
AGAIN = "done again: nothing is left to do"
KILLED = "kill -9 of the agent leaves nothing of its unit; nor does its stop"
DEAD = "storage that is frozen for ever is found within its limit, in one sentence"

# As apt itself: a POSIX lock.
_HOLD = r"""
sudo -n setsid python3 -c '
import fcntl, time
file = open("/var/lib/dpkg/lock-frontend", "w")
fcntl.lockf(file, fcntl.LOCK_EX)
time.sleep(3600)
' </dev/null >/dev/null 2>&1 &
inode=$(stat -c %i /var/lib/dpkg/lock-frontend)
until holder=$(awk '{ print $5, $6 }' /proc/locks | grep ":$inode\$"); do sleep 0.5; done
echo "${holder% *}"
"""
# The waiting script's command line contains this text; the search must not find itself.
_WAITS = "until pgrep -f '[s]till at work'; do sleep 1; done"
_LEFT = "grep -lzs '^SPOTSUP_AGENT_FOLDER=' /proc/[0-9]*/environ | wc -l"


class Machine:
    """The machine under test, prepared like a job's node."""

    def __init__(self, testbed: Testbed, results: Results, source: str) -> None:
        self._testbed, self._results = testbed, results
        self._boot = ""
        folder = testbed.stack.folder / "idle"
        folder.mkdir()
        (folder / "idle.py").write_text("import time\n\ntime.sleep(86400)\n")
        self._setup: Setup = testbed.setup(_spec(source), pack_directory(folder, limit_bytes=1 << 20).data)

    def all(self) -> None:
        """The checks in order; each depends on the one before. `dead` comes last and needs frozen storage."""
        report = self._lock_and_reboot()
        with self._results.row(HYGIENE) as row:
            row.observed = self._hygiene()
        with self._results.row(AGAIN) as row:
            second = self._bootstrap()
            done = [step.step for step in second.steps if step.state is StepState.DONE]
            expect(not second.changed, f"the second run did {', '.join(done)}")
            row.observed = (
                f"0 of {len(second.steps)} steps; {second.took_s:.0f} s, the first took {report.took_s:.0f} s"
            )
        with self._results.row(KILLED) as row:
            row.observed = self._killed()

    def dead(self) -> None:
        """With hanging storage, facts are still gathered, and the failure names the cause."""
        with self._results.row(DEAD) as row:
            began = time.monotonic()
            try:
                self._bootstrap()
            except BootstrapError as error:
                took_s, lines = time.monotonic() - began, (str(error).splitlines() or [""])
                sentence = next((line for line in lines if "has not answered" in line), "")
                expect(bool(sentence), f"it says {error}")
                expect(took_s < DEAD_S, f"it took {took_s:.0f} s, {DEAD_S:.0f} s at most were to be")
                row.observed = f"after {took_s:.0f} s: {sentence}"
            else:
                raise BrokenError("bootstrap did not find that storage hangs")

    # -- the parts -------------------------------------------------------------------------------------------

    def _lock_and_reboot(self) -> Report:
        testbed, before = self._testbed, self._run("cat /proc/sys/kernel/random/boot_id")
        with self._results.row(LOCK) as row:
            self._run("while ! [ -e /run/cloud-init/result.json ]; do sleep 1; done", 600.0)
            holder = self._run(_HOLD)
            output = self._run(f"({fill('system/wait_for_apt.sh', limit_s=3)}) 2>&1 || :").splitlines()[-1]
            expect(f"({holder}) holds /var/lib/dpkg/lock-frontend" in output, f"it says {output!r}")
            waiting, outcome = threading.Event(), list[Report | Exception]()

            def on_step(event: StepEvent) -> None:
                if event.step == "hygiene" and event.state is StepState.BEGUN:
                    waiting.set()
                self._results.print_line(f"  {event.step}: {event.state} {event.detail[:150]}")

            def work() -> None:
                try:
                    outcome.append(self._bootstrap(on_step))
                except (BootstrapError, ValueError, OSError) as error:  # reported below, in the waiting thread
                    outcome.append(error)

            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            testbed.stack.wait_for(waiting.is_set, 300.0, "the hygiene step to begin")
            self._run(_WAITS, 300.0)
            time.sleep(HELD_S)
            expect(thread.is_alive(), f"bootstrap ended while the lock was held: {outcome}")
            self._run(f"sudo -n kill -9 {holder}")
            row.observed = output
        with self._results.row(REBOOT) as row:
            thread.join(BOOTSTRAP_S + 60.0)
            report = outcome[0] if outcome else BrokenError("bootstrap does not end")
            if isinstance(report, Exception):
                raise BrokenError(f"bootstrap failed: {report}") from report
            waited = [s for s in report.steps if s.step == "hygiene" and "wait for apt and dpkg" in s.detail]
            expect(bool(waited) and waited[0].took_s >= HELD_S - 5.0, f"it did not wait for apt: {report.steps}")
            after = self._run("cat /proc/sys/kernel/random/boot_id")
            expect(before != after, "the machine was not rebooted")
            expect(any("reboot" in step.detail for step in report.steps), f"no step asked for it: {report.steps}")
            row.observed = f"another boot id; the agent runs {report.took_s:.0f} s after bootstrap began"
        return report

    def _hygiene(self) -> str:
        units = " ".join(f"/etc/systemd/system/{name}.service" for name in UPDATERS)
        masked = self._run(f"readlink {units}")
        held = self._run("apt-mark showhold")
        timer = self._run("systemctl is-active spotsup-dead-man.timer")
        expect(masked.split() == ["/dev/null"] * len(UPDATERS), f"of three services {masked!r} are masked")
        expect("linux-image" in held, f"apt-mark says {held!r}")
        expect(timer == "active", f"the dead-man timer is {timer}")
        return f"3 services masked; held: {', '.join(held.split())}; the timer is active"

    def _killed(self) -> str:
        unit = unit_name(BARE_NODE)
        pid = self._run(f"systemctl show -p MainPID --value {unit}")
        slice_ = self._run(f"systemctl show -p Slice --value {unit}")
        expect(slice_ == "spotsup.slice" and int(pid) > 1, f"{unit} is in {slice_!r}, its process {pid}")
        had = self._some()
        self._run(f"sudo -n kill -9 {pid}")
        self._none("after kill -9 of the agent")
        expect(self._bootstrap().changed, "bootstrap found nothing to do after its agent was killed")
        again = self._some()
        self._run(f"sudo -n systemctl stop {unit}", 200.0)
        self._none("after its unit was stopped")
        return f"{unit} in {slice_}: {had} processes, then 0; {again} processes, then 0"

    def _some(self) -> int:
        """How many processes the agent has, once it has its launcher."""
        self._testbed.stack.wait_for(lambda: int(self._run(_LEFT)) > 1, 300.0, "the agent to start its launcher")
        return int(self._run(_LEFT))

    def _none(self, when: str) -> None:
        self._testbed.stack.wait_for(lambda: int(self._run(_LEFT)) == 0, 60.0, f"no process to be left {when}")

    def _run(self, script: str, timeout_s: float = 120.0) -> str:
        return self._testbed.run(BARE_NODE, script, timeout_s)

    def _bootstrap(self, on_step: Callable[[StepEvent], None] = lambda _: None) -> Report:
        steps = with_recorded_gpu(self._first_boot())
        target, setup = self._testbed.target(BARE_NODE), self._setup
        for left in reversed(range(TRIES)):
            try:
                return bootstrap(
                    target, setup, clock=time.monotonic, deadline_s=BOOTSTRAP_S, on_step=on_step, steps=steps
                )
            except UnreachableError:  # as the supervisor does
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _first_boot(self) -> str:
        if not self._boot:
            self._boot = self._run("cat /proc/sys/kernel/random/boot_id")
        return self._boot


def with_recorded_gpu(first_boot: str) -> Sequence[tuple[str, Step]]:
    """The real steps; those about GPUs decide from recorded facts: a stale module until the machine is restarted."""
    stale, healthy = recorded("driver_updated_underneath"), recorded("aws_image_t4")

    def played(step: Step) -> Step:
        return lambda facts, setup: step(replace(facts, gpu=stale if facts.boot_id == first_boot else healthy), setup)

    def not_here(_facts: Facts, _setup: Setup) -> Decision:
        return Skip("recorded facts cannot compute")

    return [
        (name, not_here if name == "gpu-check" else played(step) if name == "gpu" else step) for name, step in STEPS
    ]


def recorded(name: str) -> GpuFacts:
    """The facts of one of the golden files."""
    texts = json.loads((GOLDEN / f"{name}.json").read_text())["texts"]
    return read_gpu({key: text if isinstance(text, str) else "\n".join(text) for key, text in texts.items()})


def _spec(source: str) -> JobSpec:
    return parse_spec(
        {
            "name": "checked",
            "nodes": {"min": 1, "desired": 1, "max": 1},
            "code": ".",
            "run": "idle.py",
            "storage": [{"mount": MOUNT, "nfs": source}],
        }
    )
