"""Arrows run downwards only, and what is heavy is loaded by those who need it: read from the source, then tried."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
HOMES = {
    "supervisor": REPO,
    "provisioners": REPO,
    "bootstrap": REPO,
    "spotsup_trainer": REPO / "trainer",
}

# Room -> what of ours it may import beside itself.
ALLOWED = {
    "supervisor": (
        "provisioners",
        "bootstrap",
        "spotsup_trainer.wire",
        "spotsup_trainer.etcd",
        "spotsup_trainer.mirror",
    ),
    "provisioners": (),
    "bootstrap": (),
    "spotsup_trainer": (),
}

# On a node these run in the user's environment beside torch, and must neither wait for it nor hold its memory.
TORCH_FREE = ("spotsup_trainer.agent", "spotsup_trainer.wire", "spotsup_trainer.etcd", "spotsup_trainer.mirror")


@cache
def modules(room: str) -> dict[str, Path]:
    """All modules of a room by their dotted names."""
    found = {}
    for path in sorted((HOMES[room] / room).rglob("*.py")):
        parts = path.relative_to(HOMES[room]).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def everything() -> dict[str, Path]:
    return {name: path for room in HOMES for name, path in modules(room).items()}


@cache
def imports(name: str) -> frozenset[str]:
    """What a module imports anywhere in it, functions included: `from a import b` counts as a.b, and so as a too."""
    path = everything()[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return frozenset(_imports(ast.parse(path.read_bytes()), package))


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def is_below(name: str, *tops: str) -> bool:
    return any(name == top or name.startswith(f"{top}.") for top in tops)


def loaded_by(name: str) -> Iterator[str]:
    """The modules of ours that importing a module may ever load: its own imports, and its packages."""
    for found in imports(name):
        yield from (each for each in (found, found.rpartition(".")[0]) if each in everything())


def test_each_room_is_there() -> None:
    assert all(len(modules(room)) > 3 for room in HOMES)


@pytest.mark.parametrize("room", HOMES)
def test_arrows_run_downwards_only(room: str) -> None:
    wrong = [
        f"{name} imports {found}"
        for name in modules(room)
        for found in sorted(imports(name))
        if is_below(found, *HOMES) and not is_below(found, room, *ALLOWED[room])
    ]
    assert wrong == []


@pytest.mark.parametrize("room", HOMES)
def test_no_room_depends_on_tests_or_scripts(room: str) -> None:
    wrong = {name: found for name in modules(room) for found in imports(name) if is_below(found, "tests", "scripts")}
    assert wrong == {}


def test_only_the_trainer_imports_torch() -> None:
    rooms = [room for room in HOMES if room != "spotsup_trainer"]
    wrong = [name for room in rooms for name in modules(room) if any(is_below(each, "torch") for each in imports(name))]
    assert wrong == []


def test_the_agent_and_the_words_never_lead_to_torch() -> None:
    queue = [name for name in modules("spotsup_trainer") if is_below(name, *TORCH_FREE)]
    seen = set(queue)
    while queue:
        name = queue.pop()
        assert not any(is_below(each, "torch") for each in imports(name)), f"{name} imports torch"
        new = set(loaded_by(name)) - seen
        seen |= new
        queue.extend(new)
    assert len(seen) >= len(TORCH_FREE)


def test_the_trainer_brings_nothing_but_torch_and_what_comes_with_it() -> None:
    allowed = sys.stdlib_module_names | {"spotsup_trainer", "torch", "numpy"}
    wrong = [
        f"{name} imports {found}"
        for name in modules("spotsup_trainer")
        for found in sorted(imports(name))
        if found.partition(".")[0] not in allowed
    ]
    assert wrong == []


def heavy_after(statement: str, *heavy: str) -> str:
    """Which of the heavy modules an interpreter holds after a statement."""
    code = f"import sys\n{statement}\nprint(*sorted({set(heavy)!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CLOUDS = ("boto3", "botocore", "google.cloud", "azure")
# A cloud's SDK -> the modules that may import it.
SDK_HOMES = {
    ("boto3", "botocore"): "provisioners.aws",
    ("google",): "provisioners.gcp",
    ("azure", "msrest"): "provisioners.azure",
}
SSH = ("fabric", "paramiko", "invoke")


def test_the_users_command_line_loads_nothing_heavy() -> None:
    heavy = ("torch", "numpy", *CLOUDS, *SSH, "fastapi", "starlette", "uvicorn", "pydantic", "cryptography")
    assert heavy_after("import supervisor.cli.ctl", *heavy) == ""


@pytest.mark.parametrize("module", ["supervisor.cli.daemon", "supervisor.runtime.daemon"])
def test_the_daemon_loads_no_torch_and_no_cloud_before_it_is_used(module: str) -> None:
    assert heavy_after(f"import {module}", "torch", "numpy", *CLOUDS) == ""


@pytest.mark.parametrize("sdk", SDK_HOMES, ids=" ".join)
def test_only_its_cloud_imports_an_sdk(sdk: tuple[str, ...]) -> None:
    wrong = [
        f"{name} imports {found}"
        for name in everything()
        for found in sorted(imports(name))
        if is_below(found, *sdk) and not name.startswith(SDK_HOMES[sdk])
    ]
    assert wrong == []


def test_no_sdk_is_loaded_by_an_import_alone() -> None:
    assert heavy_after(f"import {', '.join(modules('provisioners'))}", *CLOUDS) == ""


def test_the_agent_loads_no_torch() -> None:
    assert heavy_after("import spotsup_trainer.agent.main", "torch", "numpy") == ""


def test_torchruns_plugins_load_nothing_but_themselves() -> None:
    """torch loads them while its own rendezvous package is half imported."""
    project = tomllib.loads((REPO / "trainer" / "pyproject.toml").read_text())["project"]
    plugins = project["entry-points"]["torchrun.handlers"]
    assert set(plugins) == {"spotsup", "etcd-v3"}
    for plugin in plugins.values():
        module, _, entry = plugin.partition(":")
        assert heavy_after(f"import {module}\nassert callable({module}.{entry}())", "torch", "numpy", "http") == ""


def test_bootstrap_loads_ssh_only_to_connect() -> None:
    assert heavy_after("import bootstrap, bootstrap.run", *SSH, "cryptography") == ""


def test_setting_up_a_clone_needs_the_standard_library_only() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import scripts.setup_clone"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
