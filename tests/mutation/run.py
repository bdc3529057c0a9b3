"""`make mutation`: mutants of the planner, the market and the transition tables. How many do the fast tests kill?

Each mutant runs in a forked process in which the code of one function is replaced; for code at import (tables,
defaults) the module is imported again. It meets the fast tests that run the function, the fastest first, until one
fails: then it is killed. A mutant that `MAX_TESTS_S` of them do not kill has survived, whatever slower tests would say.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.mutation.imports import replace_code
from tests.mutation.operators import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "build/mutation.json"
ABOVE = (
    *("supervisor.model", "supervisor.market", "supervisor.planner", "supervisor.config", "supervisor.clouds"),
    *("supervisor.journal", "supervisor.runtime", "supervisor.nodes", "spotsup_simulator", "supervisor.api"),
    *("supervisor.app", "supervisor.cli", "tests."),
)
WHERE = (
    ("supervisor/planner", "*.py"),
    ("supervisor/features", "*/*.py"),
    ("supervisor/market", "*.py"),
    ("supervisor", "model*.py"),
)
PURE, SIMULATED = ("test_plan_*.py", "test_market*.py", "test_tables.py", "test_boundaries.py"), "tests.sim"
PROGRAMS = {"etcd_endpoint", "local_cloud"}
MAX_TEST_S, MAX_TESTS_S = 0.3, 1.0  # of CPU, for simulated tests
MIN_KILLED, MIN_KILLED_PER_MODULE = 0.90, 0.85
FIRST = 40  # tests that are collected first for a mutant at import
HANGS_AFTER_S = 10  # of CPU; the tests of one mutant take a second or two
PYTEST = (
    "-q",
    "-s",
    "-x",
    "--assert=plain",
    "--tb=native",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-m",
    "not long",
)


@dataclass(frozen=True)
class Fate:
    """What became of a mutant. `by`: the test that failed, "(hangs)" if it did not end, "" for none."""

    module: str
    line: int
    function: str
    before: str
    after: str
    by: str


@dataclass(frozen=True)
class Test:
    """A passing test. `runs`: the lines that it runs of each module."""

    id: str
    cpu_s: float
    runs: dict[str, frozenset[int]]

    @property
    def pure(self) -> bool:
        """Whether it needs no simulated world."""
        return any(Path(self.id.split("::")[0]).match(pattern) for pattern in PURE)

    def meets(self, module: str, mutant: Mutant) -> bool:
        """Whether it can kill a mutant. One at import can be killed by every test that runs the module, or that runs
        none: it reads tables.
        """
        lines = self.runs.get(module, frozenset())
        return bool(lines.intersection(mutant.lines)) if mutant.function else bool(lines) or not self.runs


def test_of(name: str, cpu_s: float, runs: dict[str, list[int]]) -> Test:
    """A test, read from a pipe."""
    return Test(name, cpu_s, {module: frozenset(lines) for module, lines in runs.items()})


def targets(chosen: str) -> dict[str, Path]:
    """The mutated modules, by dotted name."""
    files = [file for folder, pattern in WHERE for file in sorted((ROOT / folder).glob(pattern))]
    named = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files if file.stem != "__init__"}
    return {name: file for name, file in named.items() if any(each in name for each in chosen.split(","))}


@cache
def source_of(path: Path) -> str:
    """A module's source as it was at the beginning: it may be edited during a run."""
    return path.read_text()


def mutants_of(name: str, path: Path) -> list[Mutant]:
    """All mutants of one module."""
    module = importlib.import_module(name)
    enums = {key: list(value.__members__) for key, value in vars(module).items() if _is_enum(value)}
    return list(mutants(source_of(path), enums))


def _is_enum(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Enum)


# -- forks -------------------------------------------------------------------------------------------------


def in_fork(work: Callable[[], str], cpu_s: int) -> str:
    """What `work` returns in a process of its own; "(hangs)" or "(dies)" if it does not return."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _be_quiet()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        result = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return result or ("(hangs)" if os.WIFSIGNALED(status) else "(dies)")


def _be_quiet() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)


def shared(count: int, work: Callable[[int], Any], workers: int) -> list[Any]:
    """The results of `work` for each number below `count`, in order, from several processes, as JSON."""
    pipes = []
    for worker in range(workers):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                with os.fdopen(writing, "w") as pipe:
                    for number in range(worker, count, workers):
                        print(json.dumps([number, work(number)]), file=pipe, flush=True)
            finally:
                os._exit(0)
        os.close(writing)
        pipes.append((reading, child))
    found: dict[int, Any] = {}
    for reading, child in pipes:
        with os.fdopen(reading) as pipe:
            found |= dict(map(json.loads, pipe))
        os.waitpid(child, 0)
    assert len(found) == count, f"{count - len(found)} of {count} results are missing: a worker died"
    return [found[number] for number in range(count)]


# -- mutants of functions ----------------------------------------------------------------------------------


class Session:
    """The pytest plugin: instead of running the tests, it runs them on each mutant."""

    def __init__(self, modules: dict[str, Path], workers: int) -> None:
        self.modules = modules
        self.workers = workers
        self.tests: list[Test] = []
        self.fates: list[Fate] = []
        self._failed: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Replaces pytest's own loop."""
        items = {item.nodeid: item for item in session.items if not PROGRAMS & set(getattr(item, "fixturenames", ()))}
        self.tests = self._measure(list(items.values()))
        for name, path in self.modules.items():
            self.fates += self._fates(name, path, items)
            note(self.fates)
        return True

    def _fates(self, name: str, path: Path, items: dict[str, pytest.Item]) -> list[Fate]:
        work = [mutant for mutant in mutants_of(name, path) if mutant.function]

        def fate(number: int) -> str:
            mutant = work[number]
            code = code_of(compile(mutant.make(), str(path), "exec"), mutant.function, mutant.line)
            assert code is not None, mutant
            chosen = [items[each] for each in candidates(self.tests, name, mutant)]
            return in_fork(lambda: self._try(function_of(name, code), code, chosen), HANGS_AFTER_S)

        fates = shared(len(work), fate, self.workers)
        return [_fate(name, mutant, by) for mutant, by in zip(work, fates, strict=True)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember failures."""
        if report.failed:
            self._failed.append(report.nodeid)

    def _run(self, item: pytest.Item) -> bool:
        """Whether a test passes, with all of its fixtures set up for it alone."""
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        item.session.shouldfail = False
        return not self._failed

    def _try(self, function: Any, code: CodeType, chosen: Sequence[pytest.Item]) -> str:
        function.__code__ = code
        return next((item.nodeid for item in chosen if not self._run(item)), "(none)")

    def _measure(self, items: Sequence[pytest.Item]) -> list[Test]:
        """The passing tests, fastest first, with the lines that they run."""
        files = {str(path): name for name, path in targets("").items()}

        def measure(number: int) -> str:
            return in_fork(lambda: self._traced(items[number], files), HANGS_AFTER_S)

        found = []
        for item, result in zip(items, shared(len(items), measure, self.workers), strict=True):
            if result.startswith("["):
                cpu_s, runs = json.loads(result)
                found.append(test_of(item.nodeid, cpu_s, runs))
        return sorted(found, key=lambda test: test.cpu_s)

    def _traced(self, item: pytest.Item, files: dict[str, str]) -> str:
        runs: dict[str, set[int]] = defaultdict(set)

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            module = files.get(frame.f_code.co_filename)
            if module is None:
                return None
            runs[module].add(frame.f_lineno)
            return trace

        began = time.process_time()
        sys.settrace(trace)
        passed = self._run(item)
        sys.settrace(None)
        cpu_s = time.process_time() - began  # somewhat more than without tracing
        return json.dumps([cpu_s, {module: sorted(lines) for module, lines in runs.items()}]) if passed else "(fails)"


def candidates(found: Sequence[Test], module: str, mutant: Mutant) -> list[str]:
    """Ids of the tests that may kill a mutant: all pure ones, and the fast simulated ones."""
    meets = [test for test in found if test.meets(module, mutant)]
    if not mutant.function:  # all of them run the module: the most specific test first
        meets.sort(key=lambda test: sum(len(lines) for lines in test.runs.values()))
    chosen, cpu_s = [test.id for test in meets if test.pure], 0.0
    for test in meets:
        cpu_s += 0.0 if test.pure else test.cpu_s
        if not test.pure and max(test.cpu_s / MAX_TEST_S, cpu_s / MAX_TESTS_S) <= 1:
            chosen.append(test.id)
    return chosen


def code_of(code: CodeType, function: str, line: int) -> CodeType | None:
    """A function's code in its module's code. `line`: any of its lines, as a property and its setter have one name."""
    found = None
    for each in code.co_consts:
        if isinstance(each, CodeType) and each.co_firstlineno <= line:
            if each.co_qualname == function:
                found = each
            elif function.startswith(f"{each.co_qualname}."):
                found = code_of(each, function, line) or found
    return found


def function_of(module: str, code: CodeType) -> Any:
    """The function object in its module or class that has this code, but for a change."""
    found: Any = sys.modules[module]
    for part in code.co_qualname.split("."):
        found = vars(found)[part]
    if isinstance(found, property):
        functions = [each for each in (found.fget, found.fset) if each]
        return next(each for each in functions if each.__code__.co_firstlineno == code.co_firstlineno)
    return found.func if isinstance(found, cached_property) else getattr(found, "__func__", found)


def _fate(name: str, mutant: Mutant, by: str) -> Fate:
    return Fate(name, mutant.line, mutant.function, mutant.before, mutant.after, "" if by == "(none)" else by)


# -- mutants at import ------------------------------------------------------------------------------------


def fates_at_import(name: str, path: Path, found: Sequence[Test], workers: int) -> list[Fate]:
    """Each mutant is tried with its module, and all that imports it, imported again."""
    work = [mutant for mutant in mutants_of(name, path) if not mutant.function]

    def fate(number: int) -> str:
        code = compile(work[number].make(), str(path), "exec")
        return in_fork(lambda: _import_and_try(name, code, candidates(found, name, work[number])), HANGS_AFTER_S)

    fates = shared(len(work), fate, workers)
    return [_fate(name, mutant, by) for mutant, by in zip(work, fates, strict=True)]


def _import_and_try(name: str, code: CodeType, chosen: Sequence[str]) -> str:
    for loaded in [loaded for loaded in sys.modules if loaded.startswith(ABOVE)]:
        del sys.modules[loaded]
    replace_code(name, code)
    for some in (chosen[:FIRST], chosen[FIRST:]):
        watch = _Watch()
        status = pytest.main([*PYTEST, *some], plugins=[watch]) if some else pytest.ExitCode.OK
        if status != pytest.ExitCode.OK:
            return watch.failed or f"(pytest ends with {int(status)})"
    return "(none)"


class _Watch:
    failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


# -- the whole ---------------------------------------------------------------------------------------------


def test_files(*, simulated: bool) -> list[str]:
    """The pure test files, and those that use the simulated world if `simulated`."""
    files = [file for pattern in PURE for file in sorted((ROOT / "tests/unit").glob(pattern))]
    if simulated:
        others = {*(ROOT / "tests/unit").glob("test_*.py"), *(ROOT / "tests/sim").glob("test_*.py")} - set(files)
        files += [file for file in sorted(others) if f"from {SIMULATED}" in file.read_text()]
    return [str(file.relative_to(ROOT)) for file in files]


def run(modules: dict[str, Path], workers: int, *, simulated: bool) -> tuple[list[Fate], list[Test]]:
    """All mutants of these modules."""

    def functions() -> str:
        session = Session(modules, workers)
        status = pytest.main([*PYTEST, *test_files(simulated=simulated)], plugins=[session])
        fates = [asdict(fate) for fate in session.fates]
        found = [
            [test.id, test.cpu_s, {module: sorted(lines) for module, lines in test.runs.items()}]
            for test in session.tests
        ]
        return json.dumps([int(status), fates, found])

    # What all tests import: once, before all forks.
    importlib.import_module("tests.sim.harness" if simulated else "tests.unit.scene")
    for path in modules.values():
        source_of(path)
    gc.freeze()  # the heap stays shared between all forks
    status, fates, found = json.loads(in_fork(functions, resource.RLIM_INFINITY))
    assert found, f"pytest ended with status {status}, and no test was found that passes"
    tests_found = [test_of(*each) for each in found]
    known = [Fate(**fate) for fate in fates]
    for name, path in modules.items():
        known += fates_at_import(name, path, tests_found, workers)
        note(known)
    return known, tests_found


def note(fates: Sequence[Fate]) -> None:
    """Write the report so far, for a run that is stopped."""
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({"mutants": [asdict(fate) for fate in fates]}, indent=1))


def counts(fates: Sequence[Fate]) -> dict[str, Counter[bool]]:
    """How many were killed, and how many survived: per module, and in total."""
    found: dict[str, Counter[bool]] = defaultdict(Counter)
    for fate in fates:
        for name in (fate.module.removeprefix("supervisor."), "all"):
            found[name][bool(fate.by)] += 1
    return found


def table(fates: Sequence[Fate]) -> Iterator[str]:
    """A row per module, and a total."""
    yield f"| {'module':20} | mutants | killed | survived | killed % |"
    yield f"|{'-' * 22}|--------:|-------:|---------:|---------:|"
    for name, count in sorted(counts(fates).items(), key=lambda row: (row[0] == "all", row[0])):
        share = 100 * count[True] / count.total()
        yield f"| {name:20} | {count.total():7} | {count[True]:6} | {count[False]:8} | {share:8.1f} |"


def main() -> int:
    """The command line. Exit status 0 if enough mutants are killed, per module and in total."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--module", default="", help="only modules whose dotted name has one of these in it: draft,jobs"
    )
    parser.add_argument("--survivors", action="store_true", help="print each survivor")
    parser.add_argument("--simulated", action="store_true", help="also the tests that use the simulated world")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    os.chdir(ROOT)
    began = time.monotonic()
    if not (modules := targets(options.module)):
        parser.error(f"no module's name has any of {options.module!r} in it; without --module all are mutated")
    fates, found = run(modules, options.workers, simulated=options.simulated)
    fates.sort(key=lambda fate: (fate.module, fate.line))
    note(fates)
    survivors = [fate for fate in fates if not fate.by]
    if options.survivors:
        for fate in survivors:
            print(f"{fate.module}:{fate.line} {fate.function}: {fate.before} → {fate.after}")
    print("\n".join(table(fates)))
    cpu_s = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(
        f"RESULT {len(fates)} mutants, {len(fates) - len(survivors)} killed by {len(found)} tests: "
        f"{100 * (len(fates) - len(survivors)) / len(fates):.1f} % "
        f"({time.monotonic() - began:.0f} s, {cpu_s:.0f} s of CPU; build/mutation.json)"
    )
    share = {name: count[True] / count.total() for name, count in counts(fates).items()}
    return 0 if share["all"] >= MIN_KILLED and min(share.values()) >= MIN_KILLED_PER_MODULE else 1


if __name__ == "__main__":
    sys.exit(main())
