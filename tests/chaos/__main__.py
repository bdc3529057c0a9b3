"""`make chaos`: random faults, drawn from a seed, injected into a whole installation that trains a job.

Real daemons, etcd of three members and then of one, the local cloud's sshd machines, agents, launchers and torch. After
each fault everything must recover; at the end, data, journal, cloud, alerts and growth are judged.
Exit status 0 if every promise was kept; the last line is the result. Writes build/chaos.json.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.markup import escape
from spotsup_trainer.etcd import EtcdError
from spotsup_trainer.session import audit

from provisioners.localcloud.control import ServerError
from provisioners.localcloud.store import StoreError
from supervisor.errors import SpotsupError
from tests.chaos import probes
from tests.chaos.context import Context, Outcome
from tests.chaos.daemon_faults import set_clock
from tests.chaos.faults import FAULTS
from tests.chaos.growth import MIB, growth
from tests.chaos.networks import UnavailableError, networks
from tests.chaos.plan import HARMLESS, Kind, Planned, schedule
from tests.chaos.registers import Users, verdict
from tests.chaos.report import Result, show, write
from tests.chaos.testbed import Testbed, open_testbed
from tests.support import audited_worker
from tests.support.console import console, stop_on_signals
from tests.support.disks import memory
from tests.support.etcd_members import EtcdFailedError, Members
from tests.support.etcd_server import cable
from tools.stack import ROOT, InterruptedByUserError, StackError

JOB = "train"
DESIRED = 2
CHECKPOINT_STEPS = 20
# Steps that may be made while a checkpoint is written: until it is complete, the previous one counts.
STEPS_WHILE_WRITING = 20
WEIGHTS_TOLERANCE = 1e-9
QUOTA_BYTES = 64 * MIB
# Twice the quota, because defragmenting copies it, and write-ahead logs of 64 MiB: a full disk leaves a broken one.
ETCD_DISK_MIB = 2048
RECOVERY_S = 600.0
SAMPLE_S = 60.0
LEASE_S, LEADER_S = 12.0, 6.0
# How long training may pause during a fault that must not affect it: a busy computer needs so long.
MAX_PAUSE_S = 5.0
# A testbed whose faults take less than this has no time for one of 15 min.
MIN_LONG_S = 1500.0
JOB_FILE = """\
name: {job}
nodes: {{min: 1, desired: {desired}, max: 3}}
limits: {{app_failures: 1000}}
run: >-
  worker.py --audit {folder}/audit --until {folder}/until --weights {folder}/weights.pt
  --step-time {step_time} --every {every}
"""
_FAILURES = (
    *(StackError, SpotsupError, EtcdError, EtcdFailedError, ServerError, StoreError, UnavailableError),
    *(OSError, subprocess.SubprocessError),
)


class ChaosRun:
    """Faults on one testbed, from the job's submission to the judgement."""

    def __init__(self, context: Context, folder: Path, result: Result, hook: probes.Webhook, options: Any) -> None:
        self.context, self.testbed, self.result, self.options = context, context.testbed, result, options
        self.folder = folder / "job"
        self.steps = probes.Steps(self.folder / "audit")
        self._hook = hook
        self._began, self._began_at = time.monotonic(), time.time()
        self._over = threading.Event()
        self._users = Users([d.socket for d in self.testbed.daemons], options.seed, users=2, names=2, rest_s=1.0)

    def inject_all(self, kinds: Sequence[Kind], seconds: float) -> None:
        """Inject faults for so long, then finish. Raises one of _FAILURES if the testbed cannot go on."""
        self._submit()
        self._wait_until_recovered("the start of training", RECOVERY_S)
        self.log(f"{DESIRED} nodes train; injecting faults")
        self._users.start()
        sampler = threading.Thread(target=self._sample, daemon=True)
        sampler.start()
        began = time.monotonic()
        try:
            for planned in islice(schedule(self.options.seed, kinds), self.options.faults):
                if time.monotonic() - began >= seconds:
                    break
                self._inject(planned)
                time.sleep(planned.rest_s)
        finally:
            self.result.ran_s = time.monotonic() - began
            self._over.set()
            self._users.stop()
            sampler.join(30.0)
        self._finish()

    def log(self, text: str) -> None:
        """Print a line with the time."""
        console.print(f"[dim]{time.monotonic() - self._began:7.1f} s[/dim]  {text}")

    # -- one fault -----------------------------------------------------------------------------------------

    def _inject(self, planned: Planned) -> None:
        outcome = Outcome(planned, round(time.monotonic() - self._began, 1))
        self.result.outcomes.append(outcome)
        before, began = self.steps.read().newest_round, time.time()
        with FAULTS[planned.kind](self.context, planned, outcome):
            time.sleep(planned.hold_s)
            if planned.kind in HARMLESS:
                self._expect_steps(outcome, began)
        repaired = time.time()
        waited_s = self._wait_until_recovered(f"recovery from fault {planned.number} ({planned.kind})", RECOVERY_S)
        outcome.recovered_s = round(waited_s, 1)
        outcome.pause_s = round(self.steps.read().gap_s(began, time.time()), 2)
        if planned.kind in HARMLESS and self.steps.newest_round != before:
            outcome.broken.append(f"it ended round {before}: round {self.steps.newest_round} trains now")
        outcome.broken += probes.doubles(self.testbed)
        self._users.use_new_names()
        notes = escape(f"{', '.join(f'{name} {value:g}' for name, value in outcome.notes.items())} {outcome.remark}")
        held_s = repaired - began
        state = f"[red]{escape('; '.join(outcome.broken))}[/red]" if outcome.broken else "kept"
        self.log(
            f"{planned.number:3} {planned.kind:<30} {held_s:5.1f} s  pause {outcome.pause_s:5.2f} s  "
            f"recovered after {outcome.recovered_s:5.1f} s  {state}  [dim]{notes}[/dim]"
        )

    def _expect_steps(self, outcome: Outcome, since: float) -> None:
        """Training goes on during the fault."""
        gap_s = self.steps.read().gap_s(since, time.time())
        if gap_s > MAX_PAUSE_S:
            outcome.broken.append(f"no step for {gap_s:.1f} s during the fault")

    def _wait_until_recovered(self, what: str, timeout_s: float) -> float:
        since = time.time()
        return self.testbed.wait_for(lambda: self._recovered(since), timeout_s, what)

    def _recovered(self, since: float) -> bool:
        """Since then the job has trained with all nodes in its newest round; journal and cloud agree."""
        try:
            steps = self.steps.read()
            if steps.newest_at <= since or self.testbed.leader() is None:
                return False
            job = self.testbed.job(JOB)
            trains = job["state"] == "running" and job["nodes"]["training"] == DESIRED
            return (
                trains
                and steps.newest_round == job["round"]
                and all(daemon.health() for daemon in self.testbed.daemons)
                and not probes.mismatches(self.testbed)
            )
        except (SpotsupError, StackError):
            return False

    # -- before and after ----------------------------------------------------------------------------------

    def _submit(self) -> None:
        code = self.folder / "code"
        code.mkdir(parents=True)
        shutil.copy(audited_worker.__file__, code / "worker.py")
        (code / "job.yaml").write_text(
            JOB_FILE.format(
                job=JOB,
                desired=DESIRED,
                folder=shlex.quote(str(self.folder)),
                step_time=self.options.step_time,
                every=CHECKPOINT_STEPS,
            )
        )
        done = self.testbed.any().ctl("submit", str(code / "job.yaml"))
        if done.returncode:
            raise StackError(f"the job was refused: {done.stderr.strip()}")

    def _sample(self) -> None:
        while True:
            with contextlib.suppress(*_FAILURES):
                self.result.samples += probes.sample(self.testbed, self._began)
            if self._over.wait(SAMPLE_S):
                return

    def _finish(self) -> None:
        """End the job at the end of an epoch, and judge."""
        broken, facts = self.result.broken, self.result.facts
        history = self._users.finish(self.testbed.any().socket)
        broken += verdict(history) + self._users.faults[:3]
        answered = sum(call.op.answer == "done" for call in history)
        facts |= {"commands": len(history), "commands_done": answered}
        last = (self.steps.read().newest_step // audited_worker.STEPS_PER_EPOCH + 2) * audited_worker.STEPS_PER_EPOCH
        until = self.folder / "until.tmp"
        until.write_text(str(last))
        until.replace(self.folder / "until")
        self.testbed.wait_for(lambda: self.testbed.job(JOB)["state"] == "succeeded", RECOVERY_S, "the job's success")
        self.testbed.wait_for(lambda: not self.testbed.machines(), RECOVERY_S, "the release of every machine")
        self.testbed.wait_for(lambda: not probes.mismatches(self.testbed), RECOVERY_S, "agreement of journal and cloud")
        self.testbed.wait_for(
            lambda: not probes.undelivered(self.testbed, JOB, self._hook.texts), RECOVERY_S, "delivery of every alert"
        )
        report = self.steps.report(audited_worker.SAMPLES, audited_worker.GLOBAL_BATCH)
        facts |= {"steps": report.steps, "rounds": len(report.rounds), "alerts": len(self._hook.texts)}
        facts |= {"samples_repeated": report.samples_repeated, "samples_missed": report.samples_missed}
        if report.samples_repeated or report.samples_missed:
            broken.append(f"{report.samples_repeated} samples were repeated, {report.samples_missed} missed")
        most_lost = CHECKPOINT_STEPS + STEPS_WHILE_WRITING
        broken += probes.lost_steps(report, self.result.outcomes, self._began_at, most_lost)
        facts["weights_differ_by"] = difference = self._difference()
        if not difference <= WEIGHTS_TOLERANCE:
            broken.append(f"the weights differ by {difference:g} from those of an undisturbed run")
        broken += [text for each in growth(self.result.samples) for text in each.broken()]

    def _difference(self) -> float:
        """The largest difference between the job's weights and those of one process that nothing disturbed."""
        import torch

        weights = self.folder / "alone.pt"
        files = ("--audit", self.folder / "alone", "--until", self.folder / "until", "--weights", weights)
        subprocess.run([sys.executable, audited_worker.__file__, *files], check=True, timeout=RECOVERY_S)
        pairs = zip(torch.load(self.folder / "weights.pt"), torch.load(weights), strict=True)
        return max(float((one - other).abs().max()) for one, other in pairs)


@contextmanager
def prepared(
    folder: Path, etcds: int, hook: probes.Webhook, seconds: float
) -> Iterator[tuple[Context, dict[Kind, str]]]:
    """A testbed with everything that is available here, and which kinds of faults are not, and why."""
    missing: dict[Kind, str] = {}
    if seconds < MIN_LONG_S:
        missing[Kind.NODES_CUT_OFF_LONG] = f"each testbed needs {MIN_LONG_S / 60:g} min or more"
    with ExitStack() as stack:
        disks: dict[str, Path] = {}
        for name, kind, mib in (("etcd", Kind.ETCD_DISK_FULL, ETCD_DISK_MIB), ("daemon", Kind.DAEMON_DISK_FULL, 8)):
            try:
                disks[name] = stack.enter_context(memory(folder / f"disk-{name}", mib))
            except pytest.skip.Exception as error:  # a test would be skipped
                missing[kind] = str(error)
        network = None
        try:
            if etcds > 1:
                network = stack.enter_context(networks(etcds, f"{folder.name[-1]}{id(folder) % 997}"))
        except UnavailableError as error:
            missing |= dict.fromkeys((Kind.ETCD_CUT_OFF, Kind.ETCD_NARROW), str(error))
        if network is None and etcds == 1:
            missing |= dict.fromkeys((Kind.ETCD_CUT_OFF, Kind.ETCD_NARROW), "etcd has one member: it would be down")
        clock = folder / "clock"
        set_clock(clock, 0)
        clocks = {"PYTHONPATH": str(Path(__file__).with_name("wrong_clock")), "CHAOS_CLOCK": str(clock)}
        options: tuple[str, ...] = ("--quota-backend-bytes", str(QUOTA_BYTES), "--auto-compaction-mode", "periodic")
        options += ("--auto-compaction-retention", "1m", "--snapshot-count", "1000", "--max-wals", "2")
        homes = {0: disks["etcd"]} if "etcd" in disks else {}
        members = Members(folder / "etcd", etcds, options, homes, network.each if network else ())
        cables = [stack.enter_context(cable(endpoint)) for endpoint in members.endpoints]
        states = [disks.get("daemon", folder / "state-0"), folder / "state-1"]
        context = stack.enter_context(
            open_testbed(
                folder / "testbed",
                members,
                leader_ttl_s=LEADER_S,
                lease_ttl_s=LEASE_S,
                webhook=hook.url,
                last_environ=clocks,
                state_dirs=states,
                node_endpoints=[wire.endpoint for wire in cables],
            )
        )
        yield Context(context, JOB, etcds, clock, network, cables, disks.get("etcd"), disks.get("daemon")), missing


def run_testbed(folder: Path, seconds: float, options: argparse.Namespace, result: Result) -> None:
    """Run one testbed, and add what is broken to the result."""
    hook = probes.Webhook()
    try:
        with prepared(folder, result.etcds, hook, seconds) as (context, missing):
            for kind, why in missing.items():
                console.print(f"          not available here: {kind} ({why})", markup=False)
            kinds = [kind for kind in Kind if kind not in missing and options.only in kind]
            if not kinds:
                raise UnavailableError("none of the requested faults is available here")
            run = ChaosRun(context, folder, result, hook, options)
            try:
                run.inject_all(kinds, seconds)
            except (*_FAILURES, audit.AuditError) as error:
                result.broken.append(f"{type(error).__name__}: {error}")
                result.broken.append(_describe(context.testbed))
                run.log(f"[red]cannot go on: {escape(result.broken[-2])}[/red]")
                if options.keep:
                    console.print("the testbed is kept; press Enter to end it")
                    sys.stdin.readline()
    except _FAILURES as error:
        result.broken.append(f"the testbed did not start or end: {type(error).__name__}: {error}")
    finally:
        hook.close()


def _describe(context: Testbed) -> str:
    """The state of a testbed that has not recovered."""
    try:
        job = context.job(JOB)
        nodes = ", ".join(f"{node['id']} {node['state']}" for node in job["node_list"] if node["state"] != "gone")
        text = f"{job['state']}, {job['sentence']}; nodes: {nodes}; {'; '.join(probes.mismatches(context))}"
    except (SpotsupError, StackError) as error:
        text = str(error)
    daemons = "; ".join(f"{each.name}: {each.health().get('headline', 'does not answer')}" for each in context.daemons)
    return f"state: {text}; {daemons}"


def main() -> int:
    """The command line. Exit status 0 if every promise was kept; 130 after Ctrl-C."""
    options = _parse()
    stop_on_signals()
    began = time.monotonic()
    console.print(f"seed {options.seed}: SEED={options.seed} injects the same faults in the same order")
    found: list[Result] = []
    interrupted = False
    try:
        for etcds in options.etcds:
            folder = options.folder / f"etcd-{etcds}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            console.print(f"etcd of {etcds}, {options.minutes / len(options.etcds):g} min:")
            found.append(Result(etcds))
            run_testbed(folder, options.minutes * 60 / len(options.etcds), options, found[-1])
    except InterruptedByUserError:
        interrupted = True
    grown = show(found)
    broken = [text for result in found for text in result.all_broken()]
    wall_s = round(time.monotonic() - began, 1)
    ok = not broken and not interrupted
    write(options.json, found, grown, ok=ok, seed=options.seed, broken=broken, wall_s=wall_s)
    for text in broken:
        console.print(f"broken: {text}", style="red", markup=False)
    if interrupted:
        console.print("interrupted; every process was ended")
        return 130
    faults, ran_s = sum(len(result.outcomes) for result in found), sum(result.ran_s for result in found)
    facts = {name: sum(result.facts.get(name, 0) for result in found) for name in ("steps", "commands")}
    console.print(
        f"chaos: seed {options.seed}, {faults} faults in {ran_s / 60:.1f} min, {facts['steps']} steps, "
        f"{facts['commands']} commands, {len(broken)} broken promises   ({options.json})"
    )
    return 1 if broken else 0


def _sizes(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description=(__doc__ or "").splitlines()[0])
    build = ROOT / "build"
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100000)
    parser.add_argument("--minutes", type=float, default=20.0, help="of faults, in total")
    parser.add_argument("--faults", type=int, metavar="N", help="at most, per testbed")
    parser.add_argument(
        "--etcds", type=_sizes, default="3,1", metavar="N,N", help="testbeds one after the other, by etcd's members"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name contains it")
    parser.add_argument("--step-time", type=float, default=0.2, metavar="S")
    parser.add_argument("--keep", action="store_true", help="wait before a broken testbed is ended")
    parser.add_argument("--folder", type=Path, default=build / "chaos", help="for everything that is written")
    parser.add_argument("--json", type=Path, default=build / "chaos.json")
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
