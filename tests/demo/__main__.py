"""`make demo`: a job on three spot machines loses two of them, grows to four, and finishes without a lost sample.

The machines are the local cloud's, or those of a test cloud: `make demo CLOUD=aws`. Exits non-zero when a promise was
broken, or when it gave up, which it does where nothing moves any more: a slow machine only takes longer. Writes
build/demo.json, or build/demo-aws.json, build/demo-tls.json.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rich.markup import escape
from rich.table import Table
from spotsup_trainer.session import audit

from tests.demo.clouds import CLOUDS, CloudControl, opened
from tests.support.console import SIGNALS, console, ignore_signals, write_result
from tools.stack import ROOT, GaveUpError, InterruptedByUserError, Stack, StackError

JOB = "chars"
NOTICE_S = 30
GLOBAL_BATCH = 12
SEQUENCE = 64
TEXT_BYTES = 2_000_000
INTERRUPTED = "interrupted"
CHECKPOINT_EVERY = 25
# The job ends so many steps after all that happens to it: no rank has made them when the last one reads of it.
STEPS_AFTER = 100
# A periodic checkpoint is written and flushed beside training; until it is complete, the previous one counts. On a busy
# disk that has taken more than two seconds.
WRITTEN_WITHIN_S = 3.0
WAIT_S = 120.0  # from the last progress
LONGEST_S = 3600.0  # of the whole demo, whatever moves
SAY_S = 5.0

JOB_FILE = """\
name: {name}
nodes: {{min: 2, desired: 3, max: 4}}
code: {code}
run: >-
  audited_example.py --audit {audit} --until {until} --steps 1000000 --step-time {step_time} --checkpoint-every {every}
  --global-batch {batch} --seq {sequence} --text-mb {text_mb} --checkpoints {checkpoints}
{cloud}"""


@dataclass
class Disturbance:
    """One disturbance of the job, and what it cost. Times are UNIX seconds."""

    kind: str
    node: str
    at: float
    request_latency_s: float | None = None
    pause_s: float | None = None
    steps_lost: int | None = None
    steps_per_s: float = 0.0
    rounds: list[int] = field(default_factory=list)


class Demo:
    """The demo, step by step."""

    def __init__(self, stack: Stack, cloud: CloudControl, options: argparse.Namespace) -> None:
        self.stack = stack
        self.cloud = cloud
        self.options = options
        self.audit_dir = stack.folder / "audit"
        self.until_file = stack.folder / "until"
        self.disturbances: list[Disturbance] = []
        self.began = time.monotonic()
        self.over = False  # the job has succeeded
        self.steps_per_s = 0.0
        self._moved: object = None
        self._said = ""
        self._said_at = 0.0

    def play(self) -> None:
        """From an empty cloud to an empty cloud."""
        secured = ", secured by TLS and users," if self.options.tls else ""
        self.print_line(f"starting spotsupd with its embedded etcd{secured} and {self.cloud.introduction}")
        self.stack.start_daemon()
        self.submit()
        self.until("3 nodes to train", lambda job: self.training(job) == 3 and job["step"] >= 20)
        self.notice()
        if self.options.kill_daemon:
            self.kill_daemon()
        self.kill()
        self.scale()
        self.end_job()
        self.until("the job to finish", lambda job: job["state"] == "succeeded")
        self.over = True
        self.print_line("the job has finished; waiting until everything is released")
        self.stack.wait_for(self.is_released, WAIT_S, "the cloud to be empty", progress=lambda: self._moved)

    def submit(self) -> None:
        """1. Through spotsupctl, as a user does."""
        code = self.stack.folder / "code"
        code.mkdir()
        for part in ("trainer/examples/char_transformer.py", "tests/support/audited_example.py"):
            shutil.copy(ROOT / part, code)
        file = self.stack.folder / "job.yaml"
        file.write_text(
            JOB_FILE.format(
                name=JOB,
                code=json.dumps(str(code)),
                until=_quoted(self.until_file),
                step_time=self.options.step_time,
                every=CHECKPOINT_EVERY,
                batch=GLOBAL_BATCH,
                sequence=SEQUENCE,
                text_mb=TEXT_BYTES / 1e6,
                audit=_quoted(self.audit_dir),
                checkpoints=_quoted(self.stack.folder / "checkpoints"),
                cloud=self.cloud.job,
            )
        )
        submitted = self.stack.ask("submit", str(file))
        self.print_line(f"submitted {submitted['name']}: min 2, desired 3, max 4 nodes")

    def notice(self) -> None:
        """2. A preemption notice for the node with rank 1."""
        node = self.node_with_rank(1)
        self.print_line(f"[bold]a preemption notice of {NOTICE_S} s for {node}[/bold]")
        disturbance = self.disturb("notice", node, self.cloud.preempt(node, NOTICE_S))
        self.until(f"{node} to be replaced", lambda job: self.replaced(job, disturbance))

    def kill(self) -> None:
        """3. The node with rank 0 vanishes without notice."""
        node = self.node_with_rank(0)
        self.print_line(f"[bold]{node} is killed without notice[/bold]")
        disturbance = self.disturb("kill", node)
        self.cloud.kill(node)
        self.until(f"{node} to be replaced", lambda job: self.replaced(job, disturbance))

    def scale(self) -> None:
        """4. One more node."""
        self.print_line("[bold]spotsupctl scale chars 4[/bold]")
        self.disturb("scale", "")
        self.stack.ask("scale", JOB, "4")
        self.until("4 nodes to train", lambda job: self.training(job) == 4 and self.stepped(job))

    def end_job(self) -> None:
        """5. The program comes to its end, by a file that names its last step."""
        scratch = self.until_file.with_suffix(".new")
        scratch.write_text(str(self.job()["step"] + STEPS_AFTER))
        scratch.replace(self.until_file)

    def kill_daemon(self) -> None:
        """kill -9 of the daemon: training continues, and the next daemon adopts everything."""
        before = self.job()
        self.print_line("[bold]kill -9 of spotsupd[/bold]")
        self.stack.kill_daemon()
        time.sleep(self.options.daemon_away_s)
        self.print_line("starting spotsupd again")
        self.stack.start_daemon()
        self.until("the new spotsupd to take over", lambda job: job["step"] > before["step"])
        after = self.job()
        if after["round"] != before["round"] or _staying(after) != _staying(before):
            raise StackError(f"the new daemon disturbed the job: round {before['round']} became {after['round']}")
        self.print_line(f"adopted: round {after['round']} as before, step {before['step']} → {after['step']}")

    # -- observing -----------------------------------------------------------------------------------------

    def job(self) -> dict[str, Any]:
        """The job, from `spotsupctl status -o json`."""
        found: dict[str, Any] = self.stack.ask("status", JOB)
        return found

    def until(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Follow the job until `holds`. Raises GaveUpError where it stands still."""

        def look() -> bool:
            job = self.job()
            self.show(job)
            early = {"failed", "cancelled"} if self.until_file.exists() else {"failed", "cancelled", "succeeded"}
            if job["state"] in early:
                raise StackError(f"the job {job['state']} too early, while waiting for {what}: {job['reason']}")
            if time.monotonic() - self.began > LONGEST_S:
                raise GaveUpError(f"after {LONGEST_S:g} s the demo still waited for {what}")
            self._moved = moved(job)
            return holds(job)

        self.stack.wait_for(look, WAIT_S, what, progress=lambda: self._moved)

    def is_released(self) -> bool:
        """True if the cloud bills nothing any more."""
        left = self.cloud.left()
        self._moved = left
        return not left

    @staticmethod
    def training(job: dict[str, Any]) -> int:
        """How many nodes are in the round."""
        return int(job["nodes"]["training"])

    def node_with_rank(self, rank: int) -> str:
        """The id of a node by its rank."""
        return next(str(node["id"]) for node in self.job()["node_list"] if node["rank"] == rank)

    def replaced(self, job: dict[str, Any], disturbance: Disturbance) -> bool:
        """Whether three other nodes train and have completed a step."""
        staying = {n["id"] for n in job["node_list"] if n["state"] in {"member", "ready", "draining"}}
        return disturbance.node not in staying and self.training(job) == 3 and self.stepped(job)

    def stepped(self, job: dict[str, Any]) -> bool:
        """Whether the current round has completed a step."""
        return (job["progress_at"] or 0) > self.disturbances[-1].at and job["progress_round"] == job["round"]

    def disturb(self, kind: str, node: str, at: float | None = None) -> Disturbance:
        """Record a disturbance that begins now."""
        disturbance = Disturbance(kind, node, at or time.time())
        self.disturbances.append(disturbance)
        return disturbance

    # -- output --------------------------------------------------------------------------------------------

    def print_line(self, text: str) -> None:
        """Print one line."""
        console.print(f"[dim]{time.monotonic() - self.began:6.1f} s[/dim]  {text}")

    def show(self, job: dict[str, Any]) -> None:
        """Print the job's state when it changed or a few seconds have passed."""
        if job["sentence"] == self._said and time.monotonic() - self._said_at < SAY_S:
            return
        self._said, self._said_at = job["sentence"], time.monotonic()
        loss = f"loss {job['loss']:.3f}" if job["loss"] is not None else "loss -"
        nodes = job["nodes"]
        head = f"{job['state']:<9} nodes {nodes['training']}/{nodes['desired']}  round {job['round']}"
        console.print(f"          {head}  step {job['step']:>4}  {loss}  [cyan]{escape(job['sentence'])}[/cyan]")


def moved(job: dict[str, Any]) -> object:
    """What changes as long as a job gets on, however slowly: its steps, its round, and the states of its nodes."""
    nodes = sorted((node["id"], node["state"]) for node in job["node_list"])
    return job["state"], job["round"], job["step"], nodes


def measure(demo: Demo) -> dict[str, Any]:
    """The result: from the daemon's events, and from the line that each rank wrote per step. While the job is not over,
    what shows only at its end is None. Raises StackError or AuditError."""
    events = demo.stack.ask("events", JOB)
    lines = [line for file in sorted(demo.audit_dir.glob("*.jsonl")) for line in audit.parse(file.read_text())]
    samples = (TEXT_BYTES - 1) // SEQUENCE
    report = audit.analyse(lines, samples=samples, global_batch=GLOBAL_BATCH)
    ends = [disturbance.at for disturbance in demo.disturbances[1:]] + [float("inf")]
    began = {span.round: span.first_at for span in report.rounds}
    pace = {span.round: _steps_per_s(span) for span in report.rounds}
    for disturbance, end in zip(demo.disturbances, ends, strict=True):
        changes = [change for change in report.changes if disturbance.at <= began[change.after] < end]
        disturbance.rounds = [change.after for change in changes]
        if changes:  # a demo that ended early may not have come to them
            disturbance.pause_s = round(sum(change.pause_s for change in changes), 3)
            disturbance.steps_lost = sum(change.steps_lost for change in changes)
        disturbance.steps_per_s = round(max((pace[change.before] for change in changes), default=0.0), 1)
        disturbance.request_latency_s = _latency(disturbance, events)
    trained_s = sum(span.last_at - span.first_at for span in report.rounds)
    demo.steps_per_s = sum(span.last_step - span.first_step for span in report.rounds) / trained_s if trained_s else 0.0
    launched = sum(event["kind"] in {"launch-requested", "replacement-requested"} for event in events)
    return {
        "cloud": demo.cloud.name,
        "events": [
            {key: value for key, value in asdict(each).items() if key not in {"node", "at"}}
            for each in demo.disturbances
        ],
        "samples_repeated": report.samples_repeated if demo.over else None,
        "samples_missed": report.samples_missed if demo.over else None,
        "nodes_launched": launched,
        "nodes_leaked": len(demo.cloud.left()) if demo.over else None,
        "processes_leaked": len(demo.stack.processes()) if demo.over else None,
        "loss_first": round(report.loss_first, 4),
        "loss_last": round(report.loss_last, 4),
        "steps": report.steps,
        "calls": dict(sorted(demo.cloud.calls().items())),
        "wall_s": round(time.monotonic() - demo.began, 1),
    }


def _steps_per_s(span: audit.RoundSpan) -> float:
    took_s = span.last_at - span.first_at
    return (span.last_step - span.first_step) / took_s if took_s > 0 else 0.0


def _latency(disturbance: Disturbance, events: list[dict[str, Any]]) -> float | None:
    """Seconds from the disturbance to the request for its replacement."""
    kinds = {"launch-requested", "replacement-requested"}
    asked = [
        event["at"]
        for event in events
        if event["kind"] in kinds
        and event["at"] >= disturbance.at
        and event["data"].get("replaces", "") == disturbance.node
    ]
    return round(min(asked) - disturbance.at, 3) if asked else None


def most_lost(kill: dict[str, Any], checkpoint_every: int = CHECKPOINT_EVERY) -> int:
    """Steps that may be lost without notice: one checkpoint interval, and those made while one is written."""
    return checkpoint_every + math.ceil(WRITTEN_WITHIN_S * float(kill["steps_per_s"]))


def measured_so_far(demo: Demo | None) -> dict[str, Any]:
    """The result of a demo that was ended early; empty where nothing trained."""
    with suppress(StackError, audit.AuditError):
        return measure(demo) if demo else {}
    return {}


def verdict(result: dict[str, Any], slowness_s: float, checkpoint_every: int = CHECKPOINT_EVERY) -> list[str]:
    """The broken promises, one sentence each; what is None was not measured. `slowness_s`: how late a notice may be
    seen."""
    broken = []
    within_s = 1.0 + slowness_s
    for event in result["events"]:
        kind, latency = event["kind"], event["request_latency_s"]
        if kind == "notice" and (latency is None or latency >= within_s):
            broken.append(f"a replacement was asked for {latency} s after the notice; it must be within {within_s:g} s")
        if kind in {"notice", "scale"} and event["steps_lost"]:
            broken.append(f"{event['steps_lost']} steps were lost by a {kind}; none may be")
        if kind == "kill" and (event["steps_lost"] or 0) > (most := most_lost(event, checkpoint_every)):
            broken.append(f"{event['steps_lost']} steps were lost by a kill; at most {most} may be")
    zeros = ("samples_repeated", "samples_missed", "nodes_leaked", "processes_leaked")
    broken += [f"{key.replace('_', ' ')}: {result[key]}; it must be 0" for key in zeros if result[key]]
    if result["samples_missed"] is not None and not result["loss_last"] < result["loss_first"]:
        broken.append(f"the loss did not fall: {result['loss_first']} → {result['loss_last']}")
    return broken


def show_result(result: dict[str, Any]) -> None:
    """Print the table at the end."""
    table = Table(title="What each event cost", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("event", "replacement asked for after", "pause", "steps lost", "rounds"):
        table.add_column(column, justify="left" if column == "event" else "right")
    names = {"notice": f"{NOTICE_S} s notice", "kill": "killed without notice", "scale": "scaled 3 → 4"}
    for event in result["events"]:
        latency, pause = (_seconds(event[key]) for key in ("request_latency_s", "pause_s"))
        rounds = ", ".join(str(number) for number in event["rounds"])
        lost = "-" if event["steps_lost"] is None else str(event["steps_lost"])
        table.add_row(names[event["kind"]], latency, pause, lost, rounds)
    console.print()
    console.print(table)
    console.print()
    console.print(f"steps        {result['steps']}, loss {result['loss_first']:.3f} → {result['loss_last']:.3f}")
    if result["samples_missed"] is None:
        console.print(f"nodes        {result['nodes_launched']} launched; leaks and samples show at its end")
    else:
        console.print(f"samples      {result['samples_repeated']} repeated, {result['samples_missed']} missed")
        console.print(
            f"nodes        {result['nodes_launched']} launched, {result['nodes_leaked']} leaked; "
            f"{result['processes_leaked']} processes leaked"
        )
    if result["calls"]:
        often = sorted(result["calls"].items(), key=lambda each: -each[1])[:4]
        most = ", ".join(f"{action} {times}" for action, times in often)
        console.print(f"API calls    {sum(result['calls'].values())}, most of them {most}")
    console.print(f"wall time    {result['wall_s']:.0f} s")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _quoted(path: Path) -> str:
    # `run` is split as a shell would; folded YAML leaves quotes alone.
    return "'" + str(path) + "'"


def _staying(job: dict[str, Any]) -> set[str]:
    """The job's nodes without those that are leaving."""
    return {n["id"] for n in job["node_list"] if n["state"] not in {"draining", "lost", "terminating", "gone"}}


def main() -> int:
    """Run the demo, measure, clean up, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cloud", default="local", help=", ".join(CLOUDS))
    parser.add_argument("--folder", type=Path, help="default: build/demo, or build/demo-CLOUD")
    parser.add_argument("--json", type=Path, help="default: beside the folder")
    parser.add_argument("--step-time", type=float, default=0.08)
    parser.add_argument("--kill-daemon", action="store_true", help="also kill -9 the daemon, and start it again")
    parser.add_argument("--tls", action="store_true", help="etcd with TLS, and with a user for the job")
    parser.add_argument("--daemon-away-s", type=float, default=3.0)
    parser.add_argument("--late-s", type=float, default=0.0, help="how late a busy computer may ask for a replacement")
    options = parser.parse_args()
    if options.cloud not in CLOUDS:
        console.print(f"the demo knows no cloud {options.cloud!r}; it runs on {', '.join(CLOUDS)}", markup=False)
        return 2
    own_name = "demo" if options.cloud == "local" else f"demo-{options.cloud}"
    folder = options.folder or ROOT / "build" / (f"{own_name}-tls" if options.tls else own_name)
    stack = Stack(folder, secure=options.tls)
    stop_on_signals(stack)
    demo: Demo | None = None
    result: dict[str, Any] = {}
    broken: list[str] = []
    gave_up = ""
    clouds = ExitStack()
    try:
        stack.prepare()
        demo = Demo(stack, clouds.enter_context(opened(options.cloud, stack)), options)
        demo.play()
        result = measure(demo)
        stack.stop_daemon()
    except InterruptedByUserError:
        broken = [INTERRUPTED]
    except (StackError, audit.AuditError) as error:
        if isinstance(error, GaveUpError):
            gave_up = str(error)
        else:
            broken = [str(error)]
        result = result or measured_so_far(demo)
    finally:
        console.print("[dim]cleaning up[/dim]")
        leftovers = stack.close()
        clouds.close()
        ignore_signals()
    if demo and result:
        broken += verdict(result, demo.cloud.slowness_s + options.late_s)
    broken += [f"a process was left behind: {survivor}" for survivor in leftovers.processes]
    pace = demo.steps_per_s if demo else 0.0
    return conclude(options.json or folder.with_name(folder.name + ".json"), result, broken, gave_up, pace)


def conclude(path: Path, result: dict[str, Any], broken: list[str], gave_up: str = "", steps_per_s: float = 0.0) -> int:
    """Write the result; print it, what was broken, and why the demo `gave_up` if it did. Returns the exit status."""
    write_result(path, {"ok": not broken and not gave_up, **result, "broken": [*broken, *filter(None, [gave_up])]})
    if result:
        show_result(result)
    if broken == [INTERRUPTED]:
        console.print("interrupted; nothing was left behind")
        return 130
    for text in broken:
        console.print(f"broken: {text}", style="red", markup=False)
    if gave_up:
        console.print(f"stopped: {gave_up}", markup=False)
        nothing = "" if broken else "nothing of the above is broken; "
        console.print(f"{nothing}this machine trains {steps_per_s:.1f} steps a second: try again when less runs on it")
        return 1
    if not broken:
        console.print(f"[green]every promise was kept[/green]   ({path})")
    return 1 if broken else 0


def stop_on_signals(stack: Stack) -> None:
    """A signal ends the demo at its next check; the clean-up is not interrupted."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stack.interrupt()

    for number in SIGNALS:
        signal.signal(number, on_signal)


if __name__ == "__main__":
    sys.exit(main())
