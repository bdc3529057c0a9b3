"""Arrows run downwards only, and what is heavy is loaded by those who need it: read from the source, then tried."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
HOMES = {
    "supervisor": REPO,
    "provisioners": REPO,
    "bootstrap": REPO,
    "spotsup_trainer": REPO / "trainer",
    "spotsup": REPO / "client",
    "spotsup_simulator": REPO / "simulator",
}

# Room -> what of ours it may import beside itself.
ALLOWED = {
    "supervisor": (
        "provisioners",
        "bootstrap",
        "spotsup",
        "spotsup_trainer.wire",
        "spotsup_trainer.decoding",
        "spotsup_trainer.etcd",
        "spotsup_trainer.etcd.mirror",
        "spotsup_trainer.timing",  # how long leaving takes, for both sides
        "spotsup_trainer.objects",
        "spotsup_trainer.objects.check",  # `spotsupd check` tries a bucket as nodes do
        "spotsup_trainer.objects.store",
        "spotsup_trainer.objects.url",  # how an object store is written, for both sides
        "spotsup_trainer.vitals",
        "spotsup_trainer.__version__",
        "spotsup_simulator.commands",  # in one module, which is loaded late: see below
    ),
    "provisioners": (),
    "bootstrap": ("provisioners.host", "provisioners.gpu_names", "spotsup.archive", "spotsup.errors"),
    "spotsup_trainer": (),
    "spotsup": (),
    "spotsup_simulator": (
        "supervisor",
        "provisioners",
        "bootstrap",
        "spotsup_trainer.wire",
        "spotsup_trainer.etcd",
        "spotsup_trainer.timing",
        "spotsup_trainer.rendezvous",  # the rules of rounds: the daemon leaves these to launchers, which it plays
    ),
}

TOOLS = ("benchmarks", "tools")

# The supervisor's parts from the lowest up: each may import those above it in this list, and none of its own line.
SUPERVISOR = (
    ("errors", "cron", "events", "files", "plots", "removed"),
    ("validation",),
    ("starting_time", "job_keys", "job_text", "run_line", "logins"),
    ("spec_markets",),
    ("deadlines", "spec_places"),
    ("spec_limits", "sealed"),
    ("spec", "identity"),
    ("billing",),
    ("checkpoints", "curve", "budget", "access", "sweep"),
    ("features",),
    ("model",),
    ("new_job", "unused_archives"),
    ("market", "pool_days"),
    ("alerts",),
    ("planner",),
    ("config",),
    ("endpoints",),
    ("clouds", "channels", "journal"),
    ("installation",),
    ("runtime",),
    ("nodes", "metrics"),
    ("api",),
    ("web",),
    ("app",),
    ("cli",),
)

# On a node these run in the user's environment beside torch, and must neither wait for it nor hold its memory.
TORCH_FREE = ("spotsup_trainer.agent", "spotsup_trainer.wire", "spotsup_trainer.etcd", "spotsup_trainer.etcd.mirror")


PUBLIC_SCRIPTS = REPO / "tests" / "frameworks" / "public"


@cache
def modules(room: str) -> dict[str, Path]:
    """All modules of a room by their dotted names, without scripts that import what only `make test-frameworks` has."""
    found = {}
    home = HOMES.get(room, REPO)
    for path in sorted(set((home / room).rglob("*.py")) - set(PUBLIC_SCRIPTS.glob("*.py"))):
        parts = path.relative_to(home).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def everything() -> dict[str, Path]:
    return {name: path for room in (*HOMES, *TOOLS) for name, path in modules(room).items()}


@cache
def imports(name: str, *, at_run_time: bool = False) -> frozenset[str]:
    """What a module imports anywhere in it, functions included: `from a import b` counts as a.b, and so as a too.

    `at_run_time`: without what is imported under TYPE_CHECKING only."""
    path = modules(name.partition(".")[0])[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_bytes())
    if at_run_time:
        tree.body = [node for node in tree.body if not _is_for_types_only(node)]
    return frozenset(_imports(tree, package))


def _is_for_types_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements of a module. Expressions, which are most of it, hold none and are left alone."""
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        for each in getattr(node, part, ()):
            yield each
            yield from _statements(each)


def is_below(name: str, *tops: str) -> bool:
    return any(name == top or name.startswith(f"{top}.") for top in tops)


def forbidden(rooms: Iterable[str], wrong: Callable[[str], bool]) -> list[str]:
    """The imports in these rooms that are wrong there: `importer imports imported`."""
    names = [name for room in rooms for name in modules(room)]
    return [f"{name} imports {found}" for name in names for found in sorted(imports(name)) if wrong(found)]


def loaded_by(name: str) -> Iterator[str]:
    """The modules of ours that importing a module may ever load: its own imports, and its packages."""
    for found in imports(name, at_run_time=True):
        yield from (each for each in (found, found.rpartition(".")[0]) if each in everything())


def test_each_room_is_there() -> None:
    assert all(len(modules(room)) > 3 for room in HOMES)


@pytest.mark.parametrize("room", HOMES)
def test_arrows_run_downwards_only(room: str) -> None:
    """The product imports no tools and no benchmarks either."""
    below = (room, *ALLOWED[room])
    assert forbidden([room], lambda found: is_below(found, *HOMES, *TOOLS) and not is_below(found, *below)) == []


def test_nothing_outside_tests_imports_tests() -> None:
    assert forbidden((*HOMES, *TOOLS), lambda found: is_below(found, "tests")) == []


def test_arrows_inside_the_supervisor_run_downwards_only() -> None:
    rank = {part: number for number, parts in enumerate(SUPERVISOR) for part in parts}
    wrong = []
    for name in modules("supervisor"):
        part = part_of(name)
        for found in sorted(each for each in imports(name) if is_below(each, "supervisor")):
            below = part_of(found)
            if part and below != part and rank[below] >= rank[part]:
                wrong.append(f"{name} imports {found}")
    assert wrong == []


def test_folders_of_the_api_import_those_below_them_only_and_not_what_is_made_of_them() -> None:
    rank = {"security": 0, "jobs": 1, "submit": 2, "nodes": 2, "daemon": 2}
    folders = [name for name in modules("supervisor") if folder_of_api(name) in rank]
    wrong = [
        f"{name} imports {found}"
        for name in folders
        for found in sorted(imports(name))
        if is_below(found, "supervisor.api.service", "supervisor.api.app")
        or (
            (below := folder_of_api(found)) in rank
            and below != (own := folder_of_api(name))
            and rank[below] >= rank[own]
        )
    ]
    assert len(folders) > 20
    assert wrong == []


def folder_of_api(name: str) -> str:
    """The folder of supervisor/api that a module, or a name in it, is in; "" for one elsewhere."""
    return name.split(".")[2] if is_below(name, "supervisor.api") and name.count(".") > 2 else ""


def part_of(name: str) -> str:
    """The part of the supervisor that a module, or a name in it, belongs to. A feature's rule is the planner's, its
    record the model's."""
    _, part, *inner = (*name.split("."), "")
    return "planner" if part == "features" and inner[1:2] not in ([], [""], ["record"]) else part


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Counted are also imports inside functions, and for types alone."""
    known = everything()
    left = {
        name: {found if found in known else found.rpartition(".")[0] for found in imports(name)} & known.keys() - {name}
        for name in known
    }
    while free := {name for name, below in left.items() if not below}:
        left = {name: below - free for name, below in left.items() if name not in free}
    circles = {name: sorted(below) for name, below in left.items() if any(name in left[each] for each in below)}
    assert not left, f"a circle, and what leads to it: {circles or sorted(left)}"


def test_only_the_composition_root_knows_every_part_of_the_supervisor() -> None:
    """`app` may be imported by the command line that starts the daemon, and by nothing else."""
    assert forbidden(["supervisor"], lambda found: found == "supervisor.app.run_daemon") == [
        "supervisor.cli.daemon imports supervisor.app.run_daemon"
    ]


def test_one_module_of_the_supervisor_imports_the_simulator_and_is_loaded_late() -> None:
    """The simulator is a distribution of its own, which may not be installed."""
    found = forbidden(["supervisor"], lambda found: is_below(found, "spotsup_simulator"))
    assert {each.split()[0] for each in found} == {"supervisor.cli.simulator"}
    found = forbidden(["supervisor"], lambda found: is_below(found, "supervisor.cli.simulator"))
    assert {each.split()[0] for each in found} == {"supervisor.cli.submit"}
    top = ast.parse(modules("supervisor")["supervisor.cli.submit"].read_bytes()).body
    assert "supervisor.cli.simulator" not in [each.module for each in top if isinstance(each, ast.ImportFrom)]


def test_the_simulated_world_knows_no_recordings_and_neither_knows_a_command() -> None:
    names = list(modules("spotsup_simulator"))
    commands = ("spotsup_simulator.commands", "supervisor.cli", "supervisor.app", "supervisor.web")
    replay = [name for name in names if is_below(name, "spotsup_simulator.replay")]
    world = [name for name in names if not is_below(name, "spotsup_simulator.replay", "spotsup_simulator.commands")]
    assert len(replay) > 10
    assert len(world) > 10
    assert [f"{name} imports {each}" for name in replay for each in imports(name) if is_below(each, *commands)] == []
    above = (*commands, "spotsup_simulator.replay", "supervisor.api")
    assert [f"{name} imports {each}" for name in world for each in imports(name) if is_below(each, *above)] == []


def test_only_the_trainer_imports_torch() -> None:
    assert forbidden(set(HOMES) - {"spotsup_trainer"}, lambda found: is_below(found, "torch")) == []


def test_the_agent_and_the_words_never_lead_to_torch() -> None:
    queue = [name for name in modules("spotsup_trainer") if is_below(name, *TORCH_FREE)]
    seen = set(queue)
    while queue:
        name = queue.pop()
        assert not any(is_below(each, "torch") for each in imports(name, at_run_time=True)), f"{name} imports torch"
        new = set(loaded_by(name)) - seen
        seen |= new
        queue.extend(new)
    assert len(seen) >= len(TORCH_FREE)


def test_the_client_needs_nothing_but_what_its_extras_bring() -> None:
    allowed = sys.stdlib_module_names | {"spotsup"}
    found = forbidden(["spotsup"], lambda found: found.partition(".")[0] not in allowed)
    extras = {"optuna": "spotsup.optuna"}
    importers = {(importer, imported.partition(".")[0]) for importer, _, imported in map(str.split, found)}
    assert importers == {(home, extra) for extra, home in extras.items()}
    assert not any(is_below(each, *extras.values()) for each in imports("spotsup.client") | imports("spotsup"))


def test_the_trainer_brings_nothing_but_torch_and_what_comes_with_it() -> None:
    allowed = sys.stdlib_module_names | {"spotsup_trainer", "torch", "numpy"}
    # an extra: imported once an object store is opened
    assert forbidden(["spotsup_trainer"], lambda found: found.partition(".")[0] not in {*allowed, "obstore"}) == []
    importing = forbidden(["spotsup_trainer"], lambda found: is_below(found, "obstore"))
    assert {each.partition(" ")[0] for each in importing} == {"spotsup_trainer.objects.store"}


# A cloud's SDK -> the modules that may import it.
SDK_HOMES = {
    ("boto3", "botocore"): "provisioners.aws",
    ("google",): "provisioners.gcp",
    ("azure", "msrest"): "provisioners.azure",
}


@pytest.mark.parametrize("sdk", SDK_HOMES, ids=" ".join)
def test_only_its_cloud_imports_an_sdk(sdk: tuple[str, ...]) -> None:
    found = forbidden((*HOMES, *TOOLS), lambda found: is_below(found, *sdk))
    assert [name for name in found if not name.startswith(SDK_HOMES[sdk])] == []
