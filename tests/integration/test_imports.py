"""Arrows run downwards only, and what is heavy is loaded by those who need it: read from the source, then tried."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from tests.unit.test_imports import CLOUDS, REPO, SSH, heavy_after, modules


def test_the_users_command_line_loads_nothing_heavy() -> None:
    heavy = ("torch", "numpy", *CLOUDS, *SSH, "fastapi", "starlette", "uvicorn", "pydantic", "cryptography")
    assert heavy_after("import supervisor.cli.ctl", *heavy) == ""


@pytest.mark.parametrize("module", ["supervisor.cli.daemon", "supervisor.app"])
def test_the_daemon_loads_no_torch_and_no_cloud_before_it_is_used(module: str) -> None:
    assert heavy_after(f"import {module}", "torch", "numpy", *CLOUDS) == ""


def test_no_sdk_is_loaded_by_an_import_alone() -> None:
    assert heavy_after(f"import {', '.join(modules('provisioners'))}", *CLOUDS) == ""


def test_the_agent_loads_no_torch() -> None:
    assert heavy_after("import spotsup_trainer.agent.main", "torch", "numpy") == ""


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
