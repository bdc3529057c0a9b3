"""Who writes records and who calls a cloud: read from the source, and compared with the tables below."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
SUPERVISOR = REPO / "supervisor"

# Module of the supervisor -> the methods of Journal that it calls and that write. Only the loop writes what the daemon
# decides about jobs; the API stores what a user asked for; housekeeping deletes old events, code and ended jobs,
# names etcd's CA to nodes, and reports certificates that end; training curves and what pools granted decide nothing,
# nor does who may use the API, and did.
JOURNAL_WRITERS = {
    "runtime.loop": {"commit"},
    "api.submit.submissions": {"create_job", "put_blob", "delete_code"},
    "api.jobs.commands": {"update_job", "delete_job", "delete_code"},
    "api.daemon.daemons": {"set_pause"},
    "api.daemon.adoption": {"adopt", "set_cluster"},
    "runtime.curves": {"put_curve"},
    "runtime.pools": {"put_pool_day", "delete_pool_days"},
    "runtime.housekeeping": {"trim_cluster_events", "trim_audit"},
    "journal.unused_code": {"delete_code"},
    "api.security.audit": {"add_audit"},
    "cli.user": {"add_token", "delete_tokens"},
    "runtime.renewals": {"create_job"},
    "runtime.retention": {"delete_job", "delete_code"},
    "api.sweeps": {"put_sweep"},
    "api.secrets": {"put_secret", "delete_secret"},
    "runtime.sweeps": {"put_sweep", "create_job", "update_job"},
    "journal.etcd_trust": {"commit", "publish_ca"},
    "runtime.daily": {"commit"},
}
# Module of the supervisor -> the methods of a cloud's Provisioner that it calls. Only the actor changes a cloud.
CLOUD_CALLERS = {
    "runtime.actor": {"launch", "find", "terminate", "instances", "coverage", "leftovers", "remove", "console"},
    "runtime.offers": {"offers"},
    "api.daemon.adoption": {"instances", "coverage"},
    "cli.check": {"check", "instances"},
    "cli.machine": {"check"},
}
CHANGES_A_CLOUD = {"launch", "terminate", "remove"}


def methods(path: Path, name: str) -> dict[str, ast.FunctionDef]:
    """The public methods of a class, properties left out."""
    (found,) = (
        node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.ClassDef) and node.name == name
    )
    functions = (node for node in found.body if isinstance(node, ast.FunctionDef) and not node.decorator_list)
    return {node.name: node for node in functions if not node.name.startswith("_")}


def calls(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Each call of a method: what it is called on, as source, and the method's name."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            yield ast.unparse(each.func.value), each.func.attr


def names_called(tree: ast.AST) -> set[str]:
    """The functions that are called by their own name."""
    found = (each.func for each in ast.walk(tree) if isinstance(each, ast.Call))
    return {each.id for each in found if isinstance(each, ast.Name)}


def sources() -> Iterator[tuple[str, str]]:
    """Each module of the supervisor, and its text."""
    for path in sorted(SUPERVISOR.rglob("*.py")):
        yield ".".join(path.relative_to(SUPERVISOR).with_suffix("").parts), path.read_text()


def callers(names: set[str], *receivers: str) -> dict[str, set[str]]:
    """By module of the supervisor: which of these methods it calls on what is named so."""
    found: dict[str, set[str]] = {}
    for module, text in sources():
        for receiver, method in calls(ast.parse(text)):
            if method in names and any(word in receiver.lower() for word in receivers):
                found.setdefault(module, set()).add(method)
    return found


def test_only_the_loop_the_api_and_housekeeping_write_to_the_journal() -> None:
    journal = methods(SUPERVISOR / "journal" / "journal.py", "Journal")
    writing = {name for name, method in journal.items() if ("self", "_txn") in calls(method)}
    assert writing == set().union(*JOURNAL_WRITERS.values())
    assert callers(writing, "journal") == JOURNAL_WRITERS


def test_only_the_actor_changes_a_cloud_and_few_others_read_from_one() -> None:
    verbs = set(methods(REPO / "provisioners" / "base.py", "Provisioner"))
    assert verbs == set().union(*CLOUD_CALLERS.values())
    found = callers(verbs, "provisioner", "open_cloud")
    assert found == CLOUD_CALLERS
    assert [module for module, called in found.items() if called & CHANGES_A_CLOUD] == ["runtime.actor"]
    queries = {"runtime.actor", "api.quote", "api.daemon.adoption"}
    asking = {module for module, text in sources() if "offers_in_order" in names_called(ast.parse(text))}
    assert asking == queries
