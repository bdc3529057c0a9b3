"""A cloud is one folder, its part of the catalogue and the agent's notice reader: no other code names it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsup_trainer.agent.notices import READERS

from provisioners.catalog import load_catalog
from provisioners.descriptor import Descriptor
from provisioners.registry import CLOUDS

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = (
    "supervisor",
    "provisioners",
    "bootstrap",
    "trainer/spotsup_trainer",
    "simulator/spotsup_simulator",
    "systemd",
)
SUFFIXES = {".py", ".sh", ".toml", ".service"}

# Where clouds are at home.
HOMES = (
    *(f"provisioners/{name}/" for name in CLOUDS),
    "provisioners/local.py",
    "provisioners/localcloud/",  # it also plays the metadata services of the others, for their readers
    "provisioners/catalog.toml",
    "provisioners/registry.py",  # the list of all clouds
    *(f"trainer/spotsup_trainer/agent/{name}.py" for name in ("notices", *CLOUDS)),
    "simulator/spotsup_simulator/cloud.py",  # a cloud in memory in the place of the local one
)

# Every other file whose code names one, and why. Comments and docstrings may name whom they like.
ALLOWED = {
    "provisioners/host.py": "the local cloud's machines are bootstrap's default",
    "supervisor/spec.py": "Azure Files: a kind of NFS server, known by its name",
    "bootstrap/mounts/model.py": "Azure Files: a kind of mount",
    "bootstrap/mounts/step.py": "Azure Files: its mount options",
    "bootstrap/network/install_efa.sh": "the EFA installer's address and folder",
    "bootstrap/log_agent/cloudwatch.sh": "the CloudWatch agent's folders",
}


def files() -> Iterator[Path]:
    for room in PRODUCT:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in SUFFIXES and not path.relative_to(ROOT).as_posix().startswith(HOMES):
                yield path


def words(path: Path) -> Iterator[str]:
    """Names and texts of a module's code, or the lines of any other file, without comments."""
    if path.suffix != ".py":
        yield from (line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#"))
        return
    tree = ast.parse(path.read_bytes())
    documents = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for each in ast.walk(tree):
        match each:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.arg(arg=name):
                yield name
            case ast.Constant(value=str(text)) if id(each) not in documents:
                yield f"'{text}'"


def test_only_the_listed_places_name_a_cloud() -> None:
    rented = "|".join(name for name, cloud in CLOUDS.items() if cloud.has_catalog)
    names = re.compile(rf"\b({rented})\b|\b({rented})(settings|provisioner|reader)\b|'local'", re.IGNORECASE)
    found = {path.relative_to(ROOT).as_posix() for path in files() if any(map(names.search, words(path)))}
    assert found == ALLOWED.keys()


@pytest.mark.parametrize("cloud", CLOUDS.values(), ids=lambda cloud: cloud.name)
def test_a_descriptor_fits_what_others_have_of_the_cloud(cloud: Descriptor) -> None:
    assert CLOUDS[cloud.name] is cloud
    assert cloud.host.cloud == cloud.name
    assert cloud.metadata in {*READERS, "none"}
    assert bool(load_catalog().cloud(cloud.name).types) is cloud.has_catalog
    assert (cloud.start is None) is (cloud.startable is None)
    assert cloud.settings.__doc__
