"""`make chaos`: random faults, drawn from a seed, against a whole installation of real processes that trains a job.

Real daemons, etcd of three members and then of one, the local cloud's sshd machines, agents, launchers and torch. After
each fault all must be as it should again; at the end, data, journal, cloud and alerts are judged, and what has grown.
Exit status 0 where every promise was kept; the last line is the result. Writes build/chaos.json.
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

from rich.markup import escape
from spotsup_trainer.etcd import EtcdError
from spotsup_trainer.session import audit

from provisioners.localcloud.control import ServerError
from provisioners.localcloud.store import StoreError
from supervisor.errors import SpotsupError
from tests.chaos import probes
from tests.chaos.daemon_faults import set_clock
from tests.chaos.faults import STRIKES
from tests.chaos.ground import Ground, Outcome
from tests.chaos.growth import MIB, growth
from tests.chaos.plan import QUIET, Kind, Planned, schedule
from tests.chaos.registers import Users, verdict
from tests.chaos.report import Result, show, write
from tests.chaos.rooms import NotHereError, rooms, small_disk
from tests.chaos.site import Site, site
from tests.soak import worker
from tests.soak.etcd import EtcdFailedError, Members
from tests.soak.face import console, stop_on_signals
from tools.stack import ROOT, InterruptedByUserError, StackError

JOB = "train"
DESIRED = 2
CHECKPOINT_STEPS = 20
QUOTA_BYTES = 64 * MIB
# For twice the quota, as defragmenting copies it, and logs of 64 MiB: each time that it is full, a broken one stays.
ETCD_DISK_MIB = 2048
RECOVERY_S = 600.0
SAMPLE_S = 60.0
LEASE_S, LEADER_S = 12.0, 6.0
# How long training may stand still while something breaks that is none of its business: what a busy computer takes.
MAX_PAUSE_S = 5.0
JOB_FILE = """\
name: {job}
nodes: {{min: 1, desired: {desired}, max: 3}}
limits: {{app_failures: 1000}}
run: >-
  worker.py --audit {folder}/audit --until {folder}/until --weights {folder}/weights.pt
  --step-time {step_time} --every {every}
"""
_FAULTS = (
    *(StackError, SpotsupError, EtcdError, EtcdFailedError, ServerError, StoreError, NotHereError),
    *(OSError, subprocess.TimeoutExpired),
)


class Chaos:
    """One site, from its start to its end."""

    def __init__(self, ground: Ground, folder: Path, result: Result, hook: probes.Webhook, options: Any) -> None:
        self.ground, self.site, self.result, self.options = ground, ground.site, result, options
        self.folder = folder / "job"
        self.steps = probes.Steps(self.folder / "audit")
        self._hook = hook
        self._began = time.monotonic()
        self._over = threading.Event()
        self._users = Users([d.socket for d in self.site.daemons], options.seed, users=2, names=2, rest_s=1.0)

    def run(self, kinds: Sequence[Kind], seconds: float) -> None:
        """Raises what a site raises that cannot go on."""
        self._submit()
        self._until_well("the job to train", RECOVERY_S)
        self.tell(f"{DESIRED} nodes train; faults begin")
        self._users.start()
        sampler = threading.Thread(target=self._sample, daemon=True)
        sampler.start()
        began = time.monotonic()
        try:
            for planned in islice(schedule(self.options.seed, kinds), self.options.faults):
                if time.monotonic() - began >= seconds:
                    break
                self._fault(planned)
                time.sleep(planned.rest_s)
        finally:
            self.result.ran_s = time.monotonic() - began
            self._over.set()
            self._users.stop()
            sampler.join(30.0)
        self._finish()

    def tell(self, text: str) -> None:
        """One line, with the time."""
        console.print(f"[dim]{time.monotonic() - self._began:7.1f} s[/dim]  {text}")

    # -- one fault -----------------------------------------------------------------------------------------

    def _fault(self, planned: Planned) -> None:
        outcome = Outcome(planned, round(time.monotonic() - self._began, 1))
        self.result.outcomes.append(outcome)
        before, began = self.steps.look().newest_round, time.time()
        with STRIKES[planned.kind](self.ground, planned, outcome):
            time.sleep(planned.hold_s)
            if planned.kind in QUIET:
                self._expect_steps(outcome, began)
        mended = time.time()
        waited_s = self._until_well(f"all to be well after fault {planned.number} ({planned.kind})", RECOVERY_S)
        outcome.recovered_s = round(waited_s, 1)
        outcome.pause_s = round(self.steps.look().gap_s(began, time.time()), 2)
        if planned.kind in QUIET and self.steps.newest_round != before:
            outcome.broken.append(f"round {before} was ended by it: {self.steps.newest_round} trains now")
        outcome.broken += probes.doubles(self.site)
        self._users.fresh_names()
        notes = escape(f"{', '.join(f'{name} {value:g}' for name, value in outcome.notes.items())} {outcome.said}")
        held_s = mended - began
        state = f"[red]{escape('; '.join(outcome.broken))}[/red]" if outcome.broken else "kept"
        self.tell(
            f"{planned.number:3} {planned.kind:<30} {held_s:5.1f} s  pause {outcome.pause_s:5.2f} s  "
            f"well after {outcome.recovered_s:5.1f} s  {state}  [dim]{notes}[/dim]"
        )

    def _expect_steps(self, outcome: Outcome, since: float) -> None:
        """Training goes on while it breaks."""
        gap_s = self.steps.look().gap_s(since, time.time())
        if gap_s > MAX_PAUSE_S:
            outcome.broken.append(f"no step for {gap_s:.1f} s meanwhile")

    def _until_well(self, what: str, timeout_s: float) -> float:
        since = time.time()
        return self.site.wait_for(lambda: self._well(since), timeout_s, what)

    def _well(self, since: float) -> bool:
        """The job trains as wanted, in its newest round, since then; and the journal is what the cloud has."""
        try:
            steps = self.steps.look()
            if steps.newest_at <= since or self.site.leader() is None:
                return False
            job = self.site.job(JOB)
            trains = job["state"] == "running" and job["nodes"]["training"] == DESIRED
            return (
                trains
                and steps.newest_round == job["round"]
                and all(daemon.health() for daemon in self.site.daemons)
                and not probes.difference(self.site)
            )
        except (SpotsupError, StackError):
            return False

    # -- before and after ----------------------------------------------------------------------------------

    def _submit(self) -> None:
        code = self.folder / "code"
        code.mkdir(parents=True)
        shutil.copy(worker.__file__, code / "worker.py")
        (code / "job.yaml").write_text(
            JOB_FILE.format(
                job=JOB,
                desired=DESIRED,
                folder=shlex.quote(str(self.folder)),
                step_time=self.options.step_time,
                every=CHECKPOINT_STEPS,
            )
        )
        done = self.site.any().ctl("submit", str(code / "job.yaml"))
        if done.returncode:
            raise StackError(f"the job was not taken: {done.stderr.strip()}")

    def _sample(self) -> None:
        while True:
            with contextlib.suppress(*_FAULTS):
                self.result.samples += probes.look(self.site, self._began)
            if self._over.wait(SAMPLE_S):
                return

    def _finish(self) -> None:
        """End the job with an epoch, and judge."""
        broken, facts = self.result.broken, self.result.facts
        history = self._users.finish(self.site.any().socket)
        broken += verdict(history) + self._users.faults[:3]
        answered = sum(call.op.answer == "done" for call in history)
        facts |= {"commands": len(history), "commands_done": answered}
        last = (self.steps.look().newest_step // worker.STEPS_PER_EPOCH + 2) * worker.STEPS_PER_EPOCH
        until = self.folder / "until.tmp"
        until.write_text(str(last))
        until.replace(self.folder / "until")
        self.site.wait_for(lambda: self.site.job(JOB)["state"] == "succeeded", RECOVERY_S, "the job to end well")
        self.site.wait_for(lambda: not self.site.machines(), RECOVERY_S, "every machine to be released")
        self.site.wait_for(lambda: not probes.difference(self.site), RECOVERY_S, "the journal to know that")
        self.site.wait_for(
            lambda: not probes.untold(self.site, JOB, self._hook.texts), RECOVERY_S, "every alert to be told"
        )
        report = self.steps.report(worker.SAMPLES, worker.GLOBAL_BATCH)
        facts |= {"steps": report.steps, "rounds": len(report.rounds), "alerts": len(self._hook.texts)}
        facts |= {"samples_repeated": report.samples_repeated, "samples_missed": report.samples_missed}
        if report.samples_repeated or report.samples_missed:
            broken.append(f"{report.samples_repeated} samples were repeated, {report.samples_missed} missed")
        broken += [text for each in growth(self.result.samples) for text in each.broken()]


@contextmanager
def grounds(folder: Path, etcds: int, hook: probes.Webhook) -> Iterator[tuple[Ground, dict[Kind, str]]]:
    """A site with all that can be had here, and which kinds of fault cannot, and why."""
    missing: dict[Kind, str] = {}
    with ExitStack() as stack:
        disks: dict[str, Path] = {}
        for name, kind, mib in (("etcd", Kind.ETCD_DISK_FULL, ETCD_DISK_MIB), ("daemon", Kind.DAEMON_DISK_FULL, 8)):
            try:
                disks[name] = stack.enter_context(small_disk(folder / f"disk-{name}", mib))
            except NotHereError as error:
                missing[kind] = str(error)
        network = None
        try:
            if etcds > 1:
                network = stack.enter_context(rooms(etcds, f"{folder.name[-1]}{id(folder) % 997}"))
        except NotHereError as error:
            missing |= dict.fromkeys((Kind.ETCD_CUT_OFF, Kind.ETCD_NARROW), str(error))
        if network is None and etcds == 1:
            missing |= dict.fromkeys((Kind.ETCD_CUT_OFF, Kind.ETCD_NARROW), "of one member: it would be gone")
        clock, environ = folder / "clock", {"SPOTSUP_SLACK_WEBHOOK": hook.url}
        set_clock(clock, 0)
        clocks = {"PYTHONPATH": str(Path(__file__).with_name("wrong_clock")), "CHAOS_CLOCK": str(clock)}
        options: tuple[str, ...] = ("--quota-backend-bytes", str(QUOTA_BYTES), "--auto-compaction-mode", "periodic")
        options += ("--auto-compaction-retention", "1m", "--snapshot-count", "1000", "--max-wals", "2")
        homes = {0: disks["etcd"]} if "etcd" in disks else {}
        members = Members(folder / "etcd", etcds, options, homes, network.each if network else ())
        states = [disks.get("daemon", folder / "state-0"), folder / "state-1"]
        ground = stack.enter_context(
            site(
                folder / "site",
                members,
                leader_ttl_s=LEADER_S,
                lease_ttl_s=LEASE_S,
                environ=environ,
                last_environ=clocks,
                state_dirs=states,
            )
        )
        yield Ground(ground, JOB, etcds, clock, network, disks.get("etcd"), disks.get("daemon")), missing


def examine(folder: Path, seconds: float, options: argparse.Namespace, result: Result) -> None:
    """One site."""
    hook = probes.Webhook()
    try:
        with grounds(folder, result.etcds, hook) as (ground, missing):
            for kind, why in missing.items():
                console.print(f"          not tried: {kind} ({why})", markup=False)
            kinds = [kind for kind in Kind if kind not in missing and options.only in kind]
            if not kinds:
                raise NotHereError("no fault of those that were asked for can be had here")
            chaos = Chaos(ground, folder, result, hook, options)
            try:
                chaos.run(kinds, seconds)
            except (*_FAULTS, audit.AuditError) as error:
                result.broken.append(f"{type(error).__name__}: {error}")
                result.broken.append(_scene(ground.site))
                chaos.tell(f"[red]it cannot go on: {escape(result.broken[-2])}[/red]")
                if options.keep:
                    console.print("kept as it is; press Enter to end it")
                    sys.stdin.readline()
    except _FAULTS as error:
        result.broken.append(f"it could not be started, or ended: {type(error).__name__}: {error}")
    finally:
        hook.close()


def _scene(ground: Site) -> str:
    """What a site looks like that has not recovered."""
    try:
        job = ground.job(JOB)
        nodes = ", ".join(f"{node['id']} {node['state']}" for node in job["node_list"] if node["state"] != "gone")
        text = f"{job['state']}, {job['sentence']}; nodes: {nodes}; {'; '.join(probes.difference(ground))}"
    except (SpotsupError, StackError) as error:
        text = str(error)
    daemons = "; ".join(f"{each.name}: {each.health().get('headline', 'does not answer')}" for each in ground.daemons)
    return f"as it was found: {text}; {daemons}"


def main() -> int:
    """Examine, write, show. Exit status 0 where every promise was kept; 130 after Ctrl-C."""
    options = _parse()
    stop_on_signals()
    began = time.monotonic()
    console.print(f"seed {options.seed}: the same faults in the same order with SEED={options.seed}")
    found: list[Result] = []
    interrupted = False
    try:
        for etcds in options.etcds:
            folder = options.folder / f"etcd-{etcds}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            console.print(f"etcd of {etcds}, {options.minutes / len(options.etcds):g} min:")
            found.append(Result(etcds))
            examine(folder, options.minutes * 60 / len(options.etcds), options, found[-1])
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
    parser.add_argument("--minutes", type=float, default=20.0, help="of faults, in all")
    parser.add_argument("--faults", type=int, metavar="N", help="at most, per site")
    parser.add_argument(
        "--etcds", type=_sizes, default="3,1", metavar="N,N", help="sites one after the other, by etcd's members"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name contains it")
    parser.add_argument("--step-time", type=float, default=0.2, metavar="S")
    parser.add_argument("--keep", action="store_true", help="wait before a site that is broken is ended")
    parser.add_argument("--folder", type=Path, default=build / "chaos", help="for what is written meanwhile")
    parser.add_argument("--json", type=Path, default=build / "chaos.json")
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
