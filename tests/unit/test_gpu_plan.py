"""`make gpu`: how checks share the time, and that what they import is on a machine that has torch alone."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.gpu.plan import CHECKS, SECONDS, limit_s
from tests.gpu.report import failed, markdown, not_run

REPO = Path(__file__).resolve().parents[2]
OURS = {"tests": REPO, "spotsup_trainer": REPO / "trainer"}
WITH_TORCH = {"torch", "numpy"}  # and obstore, which is imported as an object store is opened: no check does


def test_all_checks_have_their_share_within_the_ten_minutes_of_one_command() -> None:
    assert sum(each.share_s for each in CHECKS.values()) == SECONDS < 600


def test_what_earlier_checks_have_left_over_is_for_the_next_one_and_no_share_is_touched() -> None:
    names = ["ends", "memory", "xid"]
    shares = [CHECKS[name].share_s for name in names]
    assert limit_s(sum(shares), names) == shares[0]
    assert limit_s(sum(shares) + 30, names) == shares[0] + 30
    assert limit_s(shares[0], names) == shares[0], "the first has its share, though the others will have none"
    assert limit_s(shares[0] - 1, names) is None
    assert limit_s(600, ["xid"]) == 600


def test_a_report_says_what_was_not_run_and_what_a_check_had_found_before_it_failed() -> None:
    rows = [failed("ends", "it took longer than 40 s", 40.1, {"all_reduce": "exit code 0"}, "Killed"), not_run("xid")]
    text = markdown(rows, dry=False, at="now", state="2 of 2 checks are done.")
    assert text.startswith("# What was seen on a GPU\n\nnow\n\n2 of 2 checks are done.")
    assert "failed: it took longer than 40 s\n- all_reduce: exit code 0\n\n```\nKilled\n```" in text
    assert "| xid | not run | 0.0 |" in text
    assert "not run: no time left" in text


def test_every_module_that_make_gpu_reaches_is_found_where_there_is_torch_and_nothing_else() -> None:
    """pytest was among them once. Functions of other tests may import more: no check calls them."""
    queue = [f"tests.gpu.{path.stem}" for path in (REPO / "tests" / "gpu").glob("*.py")]
    queue += ["spotsup_trainer.launcher.__main__", "spotsup_trainer.rendezvous.plugin"]
    reached, wrong = set(queue), []
    while queue:
        name = queue.pop()
        for found in _imported(name):
            top = found.partition(".")[0]
            if top in OURS:
                new = {each for each in (found, found.rpartition(".")[0]) if _file(each)} - reached
                reached |= new
                queue += new
            elif top not in sys.stdlib_module_names | WITH_TORCH | {"obstore"}:
                wrong.append(f"{name} imports {found}")
    assert wrong == []
    assert {"tests.e2e.launching", "spotsup_trainer.session.session", "tests.gpu.train"} <= reached


def _file(name: str) -> Path | None:
    path = OURS.get(name.partition(".")[0], REPO).joinpath(*name.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def _imported(name: str) -> Iterator[str]:
    """What a module imports; a module of other tests, at its top."""
    path = _file(name)
    assert path is not None
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_bytes())
    nodes = _at_top(tree.body) if name.startswith("tests.") and ".gpu." not in name else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _at_top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module is imported; those for type checkers do not."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from _at_top(getattr(node, field, []))
