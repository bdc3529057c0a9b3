"""A cloud is one folder, its part of the catalogue and the agent's notice reader: no other code names it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsup_trainer.agent.notices import READERS

from provisioners.catalog import load_catalog
from provisioners.descriptor import Descriptor
from provisioners.registry import CLOUDS

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("supervisor", "provisioners", "bootstrap", "trainer/spotsup_trainer", "systemd")
SUFFIXES = {".py", ".sh", ".toml", ".service"}

# Where clouds are at home.
HOMES = (
    *(f"provisioners/{name}/" for name in CLOUDS),
    "provisioners/local.py",
    "provisioners/localcloud/",  # it also plays the metadata services of the others, for their readers
    "provisioners/catalog.toml",
    "provisioners/registry.py",  # the list of all clouds
    *(f"trainer/spotsup_trainer/agent/{name}.py" for name in ("notices", *CLOUDS)),
    "supervisor/simulation/",  # a cloud in memory in the place of the local one
)

# Every other line that names one: how many, and why.
ALLOWED = {
    "provisioners/host.py": (1, "the local cloud's machines are bootstrap's default"),
    "supervisor/config.py": (1, "an example in a comment"),
    "supervisor/spec.py": (2, "Azure Files: a kind of NFS server, known by its name"),
    "supervisor/planner/orphans.py": (1, "the cloud whose behaviour is the reason for two sightings"),
    "bootstrap/mounts/model.py": (1, "Azure Files: a kind of mount"),
    "bootstrap/mounts/step.py": (1, "Azure Files: its mount options"),
    "bootstrap/mounts/facts.sh": (1, "the clouds' names of local disks"),
    "bootstrap/mounts/install_fsx.sh": (1, "the address of a guide"),
    "bootstrap/network/facts.py": (1, "the images that bring topology files"),
    "bootstrap/network/step.py": (1, "the only cloud with EFA"),
    "bootstrap/network/install_efa.sh": (2, "the EFA installer's address and folder"),
    "bootstrap/log_agent/cloudwatch.sh": (2, "the CloudWatch agent's folders"),
    "trainer/spotsup_trainer/objects/store.py": (2, "the client serves three stores, and two name what they compare"),
    "trainer/spotsup_trainer/objects/url.py": (2, "the forms of addresses, which are the stores' own"),
    "trainer/spotsup_trainer/agent/__init__.py": (1, "names the readers' modules"),
}


def files() -> Iterator[Path]:
    for room in PRODUCT:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in SUFFIXES and not path.relative_to(ROOT).as_posix().startswith(HOMES):
                yield path


def test_only_the_listed_places_name_a_cloud() -> None:
    rented = "|".join(name for name, cloud in CLOUDS.items() if cloud.has_catalog)
    names = re.compile(rf"\b({rented})\b|\b({rented})(settings|provisioner|reader)\b|[\"']local[\"']", re.IGNORECASE)
    found = Counter(
        path.relative_to(ROOT).as_posix()
        for path in files()
        for line in path.read_text(encoding="utf-8").splitlines()
        if names.search(line)
    )
    assert dict(found) == {place: count for place, (count, _) in ALLOWED.items()}


@pytest.mark.parametrize("cloud", CLOUDS.values(), ids=lambda cloud: cloud.name)
def test_a_descriptor_fits_what_others_have_of_the_cloud(cloud: Descriptor) -> None:
    assert CLOUDS[cloud.name] is cloud
    assert cloud.host.cloud == cloud.name
    assert cloud.metadata in READERS
    assert bool(load_catalog().cloud(cloud.name).types) is cloud.has_catalog
    assert (cloud.start is None) is (cloud.startable is None)
    assert cloud.settings.__doc__
