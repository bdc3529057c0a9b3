"""Finds everything that is tried again without end, and writes the table of docs/alerts.md: `make docs`.

What may be tried again for ever is found in the source: each kind of action, each task of housekeeping, each `follow`
beside the loop, each loop that runs until it is stopped or that outlives exceptions, and whatever sets a `retry_at`
or `next_at`. Each has to be in a row below, with the alert that tells people first, or in ENDS, with why it ends.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from supervisor.events import EventKind
from tools.limits import bound
from tools.stack import ROOT
from tools.states import put

DOCUMENT = ROOT / "docs" / "alerts.md"
FOLDERS = ("supervisor", "provisioners", "bootstrap", "trainer/spotsup_trainer")
# Commands end with their person; the local cloud is no real one.
LEFT_OUT = ("supervisor/cli/", "provisioners/localcloud/")
K = EventKind
_AGAIN = re.compile(r"(^|_)(retry_at|next_at)$")
_NUMBER = re.compile(r"\{([\w.]+)\}")


class Retry(NamedTuple):
    """Something that is tried again until it works."""

    what: str
    sites: tuple[str, ...]  # where, as `sites` names them
    every: str  # how often; {name} is a constant's value, in seconds
    alert: EventKind | None  # the first one
    after: str  # how long after the first failure; where nobody is told, why
    test: str = ""  # that shows the alert


RETRIES = (
    Retry(
        "a launch that no cloud grants",
        ("supervisor.planner.actions.Launch", "supervisor.planner.outcomes._launched"),
        "{supervisor.planner.outcomes.BACKOFF_S} s, each pool as its refusal is remembered; as one too many: in "
        "turns of all jobs, {supervisor.planner.throttling.MAX_GAP_S} s apart at most",
        K.WAITS_LONG,
        "{supervisor.features.waits.record.WaitsRules.lacks_s} s where it trains, or has trained; "
        "{supervisor.features.waits.record.WaitsRules.alert_s} s (`alerts.waits_s`) where it has not begun",
        "unit/test_plan_alerts.py::test_a_job_that_has_waited_for_hours_is_an_alert_once",
    ),
    Retry(
        "calls that a cloud denies",
        ("supervisor.planner.outcomes._denied",),
        "as the denial is remembered",
        K.ACCESS_DENIED,
        "{supervisor.planner.world.Rules.denied_alert_s} s",
        "unit/test_plan_alerts.py::test_a_denial_is_told_once_and_that_it_is_over",
    ),
    Retry(
        "the question what became of a launch without an answer",
        ("supervisor.planner.actions.Find", "supervisor.planner.outcomes._found"),
        "2 s",
        K.LAUNCH_UNCLEAR,
        "{supervisor.planner.cloud_problems.UNENDED_S} s",
        "unit/test_plan_problems.py::test_a_request_of_which_a_cloud_does_not_say_what_became_of_it_is_a_problem",
    ),
    Retry(
        "the bootstrap of a job's nodes",
        (
            "supervisor.planner.actions.Bootstrap",
            "supervisor.planner.outcomes._bootstrapped",
            "supervisor.planner.outcomes._count_failure",
            "supervisor.planner.outcomes.clear_failures",
        ),
        "{supervisor.features.bootstraps.record.BootstrapsRules.retry_s} s, doubled up to "
        "{supervisor.features.bootstraps.record.BootstrapsRules.max_retry_s} s",
        K.BOOTSTRAPS_FAILING,
        "{supervisor.features.bootstraps.record.BootstrapsRules.failures} in a row; reminders are `waits-long`. One "
        "that has never trained fails instead",
        "unit/test_plan_outcomes.py::test_people_hear_once_that_a_job_that_trains_gets_no_nodes_and_once_that_it_does_again",
    ),
    Retry(
        "the bootstrap of spares",
        ("supervisor.planner.outcomes.fail_bootstrap",),
        "{supervisor.features.bootstraps.record.BootstrapsRules.spare_retry_s} s",
        K.BOOTSTRAPS_FAILING,
        "{supervisor.features.bootstraps.record.BootstrapsRules.failures} in a row",
        "unit/test_plan_problems.py::test_spares_that_cannot_be_bootstrapped_one_after_the_other_are_a_problem",
    ),
    Retry(
        "the end of a machine, a job's or one that the journal does not know",
        (
            "supervisor.planner.actions.Terminate",
            "supervisor.planner.outcomes._terminated",
            "supervisor.planner.release._terminate",
        ),
        "2 s, growing to {supervisor.planner.outcomes.MAX_BACKOFF_S} s",
        K.NOT_ENDED,
        "{supervisor.planner.cloud_problems.UNENDED_S} s",
        "unit/test_plan_problems.py::test_a_machine_that_a_cloud_refuses_to_end_is_a_problem_with_its_price_and_what_to_do",
    ),
    Retry(
        "the listing of machines",
        ("supervisor.planner.actions.ListInstances",),
        "{supervisor.planner.world.Rules.listing_s} s",
        K.NOT_LISTED,
        "{supervisor.planner.cloud_problems.UNLISTED_S} s",
        "unit/test_plan_problems.py::test_a_cloud_that_is_not_listed_is_a_problem_and_one_that_is_again_is_told",
    ),
    Retry(
        "the listing of what machines left behind",
        ("supervisor.planner.actions.ListLeftovers",),
        "{supervisor.planner.world.Rules.leftovers_s} s",
        K.NOT_LISTED,
        "{supervisor.planner.cloud_problems.UNREMOVED_S} s",
        "unit/test_plan_problems.py::test_a_cloud_that_does_not_say_what_was_left_behind_is_a_problem_after_an_hour",
    ),
    Retry(
        "the removal of what machines left behind",
        ("supervisor.planner.actions.Remove",),
        "at each second listing of it",
        K.NOT_ENDED,
        "{supervisor.planner.cloud_problems.UNREMOVED_S} s",
        "unit/test_plan_problems.py::test_what_a_machine_left_behind_and_cannot_be_removed_is_a_problem",
    ),
    Retry(
        "the reading of offers",
        ("supervisor.planner.actions.FetchOffers",),
        "{supervisor.planner.world.Rules.refused_retry_s} s",
        K.WAITS_LONG,
        "as a launch; a job that has all its nodes needs none",
        "unit/test_plan_alerts.py::test_a_job_that_has_waited_for_hours_is_an_alert_once",
    ),
    Retry(
        "the question to a silent node",
        ("supervisor.planner.actions.AskNode",),
        "{supervisor.features.silence.rule.ASK_S} s, {supervisor.features.silence.record.SilenceRules.ask_again_s} s "
        "where it advances",
        K.SILENCE,
        "{supervisor.features.silence.record.SilenceRules.suspect_s} s; reminded each "
        "{supervisor.features.silence.record.SilenceRules.reminder_s} s",
        "unit/test_plan_silence.py::test_people_are_told_once_it_has_lasted_and_reminded",
    ),
    Retry(
        "a move to other machines",
        ("supervisor.features.moves.rule._give_up", "supervisor.features.moves.rule._leave"),
        "{supervisor.features.moves.record.MovesRules.retry_s} s, doubled up to "
        "{supervisor.features.moves.record.MovesRules.max_retry_s} s",
        K.WAITS_LONG,
        "as a launch, where it lacks nodes; else it trains as before",
        "unit/test_plan_alerts.py::test_a_job_that_trains_and_lacks_nodes_for_half_an_hour_is_an_alert_that_says_why",
    ),
    Retry(
        "the delivery of alerts",
        ("supervisor.planner.actions.SendAlerts", "supervisor.alerts.batches.after"),
        "{supervisor.alerts.batches.RETRY_S} s, doubled up to {supervisor.alerts.batches.MAX_RETRY_S} s",
        K.CHANNEL_FAILING,
        "{supervisor.planner.deliveries.FAILING_TOLD_S} s, through the other channels",
        "unit/test_deliveries.py::test_people_are_told_of_a_channel_that_fails_through_the_others",
    ),
    Retry(
        "housekeeping: backups, schedules, users and certificates of etcd, compaction, the daily summary",
        (
            *(
                f"supervisor.runtime.housekeeping.{name}"
                for name in (
                    "Housekeeping.follow",
                    "audit_retention",
                    "backup",
                    "certificate_ends",
                    "compaction",
                    "daily_summary",
                    "defragmentation",
                    "ended_jobs",
                    "output",
                    "etcd_ca",
                    "etcd_certificates",
                    "etcd_users",
                    "event_retention",
                    "schedules",
                    "unused_code",
                )
            ),
        ),
        "a minute to a day, by its schedule",
        K.TASK_FAILING,
        "{supervisor.runtime.housekeeping.FAILING_S} s",
        "unit/test_housekeeping.py::test_people_are_told_of_a_task_that_fails_for_an_hour_and_that_it_works_again",
    ),
    Retry(
        "the next member of a sweep",
        ("supervisor.runtime.sweeps.SweepKeeper.follow",),
        "{supervisor.runtime.sweeps.EVERY_S} s",
        K.TASK_FAILING,
        "{supervisor.runtime.sweeps.STUCK_S} s",
        "sim/test_sweeps.py::test_people_are_told_of_a_sweep_that_cannot_go_on",
    ),
    Retry(
        "leading, reaching etcd, starting an embedded etcd; records of curves and pools",
        (
            "supervisor.runtime.leader.Leadership._run",
            "supervisor.journal.etcd_keeper.EtcdKeeper._run",
            "spotsup_trainer.etcd.mirror.Mirror._run",
            "spotsup_trainer.etcd.mirror.Mirror._probe",
            "supervisor.runtime.curves.CurveKeeper.follow",
            "supervisor.runtime.curves.CurveKeeper._collect",
            "supervisor.runtime.pools.PoolKeeper.follow",
            "supervisor.runtime.pools.PoolKeeper.__init__",
            "supervisor.runtime.pools.PoolKeeper._collect",
        ),
        "seconds; records {supervisor.runtime.pools.RETRY_S} s",
        K.NO_LEADER,
        "{supervisor.runtime.unled.AFTER_S} s, by each daemon for itself",
        "unit/test_unled.py::test_people_are_told_once_after_two_minutes_and_once_when_it_is_over",
    ),
    Retry(
        "that same alert, to a channel that takes none",
        (
            "supervisor.runtime.unled.NoLeaderWatch.follow",
            *(f"supervisor.runtime.unled.NoLeaderWatch.{name}" for name in ("__init__", "_deliver")),
        ),
        "{supervisor.runtime.unled.RETRY_S} s",
        None,
        "only `SpotsupNoLeader` of [monitoring](monitoring.md) can",
    ),
    Retry(
        "a node's way to etcd, by a tunnel or without",
        (
            "supervisor.nodes.tunnels.Tunnels._run",
            "bootstrap.tunnel.Tunnel._run",
            "spotsup_trainer.etcd.outbox.Outbox._run",
            "spotsup_trainer.etcd.trust.CaFollower._run",
            "spotsup_trainer.rendezvous.heartbeat.Heartbeat._run",
            "spotsup_trainer.rendezvous.handler.SpotsupRendezvousHandler._connect",
            "spotsup_trainer.agent.logs.LogShipper._run",
            "spotsup_trainer.agent.log_mirror.LogMirror._run",
            "spotsup_trainer.agent.main.Agent._run_launchers",
        ),
        "seconds",
        K.SILENCE,
        "{supervisor.features.silence.record.SilenceRules.suspect_s} s, as a silent node",
        "unit/test_plan_silence.py::test_people_are_told_once_it_has_lasted_and_reminded",
    ),
    Retry(
        "a node's look at its metadata service and its GPUs",
        (
            "spotsup_trainer.agent.notices.NoticeWatcher._run",
            "spotsup_trainer.agent.gpu_watch.GpuWatch._watch",
            "spotsup_trainer.agent.gpu_use.GpuUse._watch",
        ),
        "seconds",
        None,
        "the cloud's listing has notices too, and a machine that ends is replaced; a GPU that is gone ends its program",
    ),
)

# What looks as if it were tried for ever, and why it ends.
ENDS = {
    "bootstrap.connect._connect": "by its time limit",
    "bootstrap.run._wait_for_boot": "by its time limit",
    "bootstrap.tunnel.Tunnel._ask": "by its time limit",
    "bootstrap.tunnel.Tunnel._carry": "with the connection",
    "provisioners.gcp.insertion.Insertion._wait": "by its time limit",
    "spotsup_trainer.etcd.reach._Trying.run": "by the time limit of the command that tries",
    "spotsup_trainer.etcd.tls.TlsSocket.__init__": "by the socket's time limit",
    "spotsup_trainer.etcd.tls.TlsSocket.read_all": "with what has arrived",
    "spotsup_trainer.launcher.container_init._reap": "with the last child that has ended",
    "spotsup_trainer.launcher.data_job.Command._read": "with the command's output",
    "spotsup_trainer.launcher.forkserver.WorkerServer._pump": "by its time limit",
    "spotsup_trainer.rendezvous.abandonable_call.call_while": "when its caller gives up",
    "spotsup_trainer.session.checkpoint.Checkpointer._warning_while_slow": "with the checkpoint",
    "supervisor.api.serving.ApiServer._run": "after faults that end the daemon (supervision.py)",
    "supervisor.app._run_loop": "ticks that fail for a minute end the daemon (supervision.py)",
    "supervisor.features.warm.rule.keep_warm": "it clears the time of an earlier wait",
    "supervisor.journal.etcd_server.EmbeddedEtcd._wait_until_healthy": "by its time limit",
    "supervisor.planner.actions.Clean": "after clean_timeout_s: the machine is terminated",
    "supervisor.planner.outcomes._cleaned": "after clean_timeout_s: the machine is terminated",
    "supervisor.planner.records.clamp_future_times": "it brings times forward",
    "supervisor.runtime.actor.ThreadActor._work": "each action once",
}


@cache
def sites() -> list[str]:
    """Return all places where something may be tried again for ever."""
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            where = path.relative_to(ROOT).as_posix()
            if not where.startswith(LEFT_OUT):
                module = where.removeprefix("trainer/").removesuffix(".py").replace("/", ".")
                found += [f"{module}.{name}" for name in sites_of(path.read_text(encoding="utf-8"), where)]
    return found


def sites_of(source: str, where: str = "") -> list[str]:
    """Return those of one module. `where`: its path, which says whether its `follow` is called beside the loop."""
    tree = ast.parse(source)
    found = [name for name, function in _functions(tree, "") if _tries_again(name, function, where)]
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "Action":
            found += [each.id for each in ast.walk(node.value or node) if isinstance(each, ast.Name)]
        if (
            isinstance(node, ast.Call)
            and _called(node) == "Task"
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            found.append(str(node.args[0].value))
    return found


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef):
            yield from _functions(each, f"{prefix}{each.name}.")
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{each.name}", each


def _tries_again(name: str, function: ast.AST, where: str) -> bool:
    beside_the_loop = where.startswith("supervisor/runtime/") and name.endswith(".follow")
    return beside_the_loop or any(_is_endless(node) or _sets_a_time(node) for node in ast.walk(function))


def _is_endless(node: ast.AST) -> bool:
    """True for a loop that runs until it is stopped, or outlives exceptions."""
    if not isinstance(node, ast.While):
        return False
    until_stopped = any(
        isinstance(each, ast.Call) and _called(each) in {"is_set", "wait"} for each in ast.walk(node.test)
    )
    return until_stopped or any(
        isinstance(each, ast.Try) or (isinstance(each, ast.Call) and _called(each) == "suppress")
        for each in ast.walk(node)
    )


def _sets_a_time(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return bool(node.arg and _AGAIN.search(node.arg))
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in targets:
        inner = target.value if isinstance(target, ast.Subscript) else target
        if isinstance(inner, ast.Attribute) and _AGAIN.search(inner.attr):
            return True
    return False


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def table() -> str:
    """Return a row for each retry."""
    rows = []
    for each in RETRIES:
        alert = f"`{each.alert}`" if each.alert else "nobody"
        rows.append(f"| {each.what} | {_numbers(each.every)} | {alert} | {_numbers(each.after)} |")
    return "\n".join(["", "| what is tried again | each | first alert | after |", "|---|---|---|---|", *rows, ""])


def _numbers(text: str) -> str:
    def shown(found: re.Match[str]) -> str:
        value = bound(found[1])
        return value.replace(" ", ", ") if " " in value else f"{float(value):g}"

    return _NUMBER.sub(shown, text)


def written() -> dict[Path, str]:
    """Return the document as the code has it."""
    return {DOCUMENT: put(DOCUMENT.read_text(encoding="utf-8"), "retries", table())}


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
