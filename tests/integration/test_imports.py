"""Arrows run downwards only, and what is heavy is loaded by those who need it: read from the source, then tried."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.unit.test_imports import REPO, modules

CLOUDS = ("boto3", "botocore", "google.cloud", "azure")
SSH = ("fabric", "paramiko", "invoke")


def heavy_after(statement: str, *heavy: str) -> str:
    """Which of the heavy modules an interpreter holds after a statement."""
    code = f"import sys\n{statement}\nprint(*sorted({set(heavy)!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_users_command_line_loads_nothing_heavy() -> None:
    heavy = ("torch", "numpy", *CLOUDS, *SSH, "fastapi", "starlette", "uvicorn", "pydantic", "cryptography")
    assert heavy_after("import supervisor.cli.ctl", *heavy, "yaml", "packaging", "rich", "spotsup_trainer") == ""


def test_a_command_loads_no_other_command_and_a_submission_only_what_packs_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    others = ("supervisor.cli.submit", "supervisor.cli.sweep", "supervisor.cli.operate", "supervisor.cli.login")
    run = "from click.testing import CliRunner; from supervisor.cli.ctl import main"
    listing = f"{run}; CliRunner().invoke(main, ['--socket', '{tmp_path}/s', 'list'])"
    unneeded = ("spotsup.archive", "spotsup.client", "spotsup.upload", *others)
    assert heavy_after(listing, "supervisor.cli.status", *unneeded) == "supervisor.cli.status"
    pack = f"prepare(('train.py',), {{'code': '{tmp_path}'}}).pack()"
    packing = f"from supervisor.cli.submission import prepare; assert {pack}"
    heavy = ("bootstrap.run", "asyncio", "packaging", "yaml", "urllib.request", "spotsup.archive")
    assert heavy_after(packing, *heavy) == "spotsup.archive"


def test_all_that_bootstrap_offers_is_where_it_says() -> None:
    bootstrap = importlib.import_module("bootstrap")
    assert sorted(bootstrap._PLACES) == bootstrap.__all__
    assert all(getattr(bootstrap, name) is not None for name in bootstrap.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bootstrap.nothing  # noqa: B018


@pytest.mark.parametrize("module", ["supervisor.cli.daemon", "supervisor.app"])
def test_the_daemon_loads_no_torch_and_no_cloud_before_it_is_used(module: str) -> None:
    assert heavy_after(f"import {module}", "torch", "numpy", *CLOUDS) == ""


def test_no_sdk_is_loaded_by_an_import_alone() -> None:
    assert heavy_after(f"import {', '.join(modules('provisioners'))}", *CLOUDS) == ""


def test_the_agent_loads_no_torch() -> None:
    assert heavy_after("import spotsup_trainer.agent.main", "torch", "numpy") == ""


PUBLIC = """
import spotsup_trainer, spotsup_trainer.session, spotsup_trainer.callbacks, spotsup_trainer.session.audit
import spotsup_trainer.wire, spotsup_trainer.etcd
"""


def test_public_packages_load_no_torch() -> None:
    assert heavy_after(PUBLIC, "torch", "numpy", "lightning", "transformers") == ""


def test_a_session_is_imported_from_either_package() -> None:
    top, session = importlib.import_module("spotsup_trainer"), importlib.import_module("spotsup_trainer.session")
    names = ("Session", "SessionError")
    assert {*names} < {*top.__all__}
    assert {*names} < {*session.__all__}
    assert all(getattr(top, name) is getattr(session, name) for name in names)


def test_the_public_import_paths_are_documented_and_the_callbacks_exist() -> None:
    documented = re.findall(
        r"^    from (\S+) import (.+)$", importlib.import_module("spotsup_trainer").__doc__ or "", re.MULTILINE
    )
    assert [module for module, _ in documented] == [
        "spotsup_trainer",
        "spotsup_trainer.session",
        "spotsup_trainer.session.audit",
        "spotsup_trainer.callbacks",
    ]
    for module, names in documented[:3]:
        assert all(hasattr(importlib.import_module(module), name) for name in names.split(", "))
    callbacks = importlib.import_module("spotsup_trainer.callbacks")  # most of its classes need the frameworks
    assert documented[3][1].split(", ") == callbacks.__all__ == list(callbacks._MODULES)
    for name, module in callbacks._MODULES.items():
        assert re.search(rf"^class {name}[(:]", modules("spotsup_trainer")[module].read_text(), re.MULTILINE)


def test_the_trainer_is_marked_as_typed() -> None:
    assert (REPO / "trainer" / "spotsup_trainer" / "py.typed").is_file()


def test_torchruns_plugins_load_nothing_but_themselves() -> None:
    """torch loads them while its own rendezvous package is half imported."""
    project = tomllib.loads((REPO / "trainer" / "pyproject.toml").read_text())["project"]
    plugins = project["entry-points"]["torchrun.handlers"]
    assert set(plugins) == {"spotsup"}
    for plugin in plugins.values():
        module, _, entry = plugin.partition(":")
        assert heavy_after(f"import {module}\nassert callable({module}.{entry}())", "torch", "numpy", "http") == ""


def test_bootstrap_loads_ssh_only_to_connect() -> None:
    assert heavy_after("import bootstrap, bootstrap.run", *SSH, "cryptography") == ""


def test_setting_up_a_clone_needs_the_standard_library_only() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import tools.setup.clone"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
