"""`spotsupd catalogue refresh`, through the real SDKs: new types need no release."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from provisioners.base import Fatal, Market, Offer, OfferQuery, ProvisionerError
from provisioners.catalog import MachineType, load_catalog
from provisioners.refreshed import file_of
from provisioners.registry import CLOUDS
from supervisor.cli.daemon import main
from tests.clouds.base import CloudServer
from tests.integration.cloud_names import Api
from tests.support.machines import TIMEOUT_S, request_at

pytestmark = pytest.mark.long

NEW = {
    "gcp": MachineType(name="a5-highgpu-8g", accelerator="nvidia-r100", gpus=8, vcpus=256, memory_gib=4096),
    "azure": MachineType(name="Standard_NC128ds_xl_RTXPRO6000BSE_v6", gpus=2, vcpus=128, memory_gib=512),
}


def add(server: CloudServer, machine: MachineType) -> None:
    """A type that no catalogue has."""
    if "arm" in vars(server.cloud):
        server.cloud.arm.sizes[machine.name] = machine
    else:
        server.cloud.compute.new_types[machine.name] = machine


def refresh(api: Api, folder: Path) -> dict[str, Any]:
    settings = api.server.settings().model_dump(exclude_defaults=True)
    lines = [f'state_dir = "{folder}"', f"[{api.name}]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items() if not isinstance(value, dict)]
    for key, value in settings.items():
        if isinstance(value, dict):
            lines += [f"[{api.name}.{key}]", *(f"{name} = {json.dumps(each)}" for name, each in value.items())]
    config = folder / "spotsupd.toml"
    config.write_text("\n".join(lines))
    done = CliRunner().invoke(main, ["catalogue", "refresh", "--config", str(config), "-o", "json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    (row,) = json.loads(done.stdout)["clouds"]
    assert done.exit_code == (0 if row["ok"] else 1)
    found: dict[str, Any] = row
    return found


@pytest.mark.parametrize("api", ["gcp", "azure"], indirect=True)
def test_a_new_type_is_offered_after_a_refresh(api: Api, tmp_path: Path) -> None:
    new = NEW[api.name]
    add(api.server, new)
    query = OfferQuery(gpu="R100" if api.name == "gcp" else "RTXPRO6000", gpus_per_node=1)
    with pytest.raises(ProvisionerError):
        CLOUDS[api.name].factory(api.server.settings(), tmp_path).offers(query, TIMEOUT_S)
    row = refresh(api, tmp_path)
    assert row["ok"], row
    assert f"not in the built-in catalogue: {new.name}" in row["message"]
    offers = CLOUDS[api.name].factory(api.server.settings(), tmp_path).offers(query, TIMEOUT_S)
    assert {each.instance_type for each in offers} == {new.name}
    refreshed = load_catalog("", file_of(tmp_path, api.name)).cloud(api.name)
    before = {each.name: each for each in load_catalog().cloud(api.name).types}
    for each in refreshed.types:
        if each.name in before:
            assert each.gpu == before[each.name].gpu
            assert each.markets == before[each.name].markets or api.name == "azure"
    assert {each.name for each in refreshed.types} == {*before, new.name}


@pytest.mark.long
def test_ec2s_own_description_is_the_built_in_catalogue(aws: Api, tmp_path: Path) -> None:
    row = refresh(aws, tmp_path)
    assert row["ok"], row
    assert row["message"].endswith("aws.toml"), "nothing is new"
    text = file_of(tmp_path, "aws").read_text()
    assert text.startswith("# EC2 DescribeInstanceTypes, read 20")
    types = {each["name"]: each for each in tomllib.loads(text)["aws"]["types"]}
    assert types["p6-b300.48xlarge"]["efa_first_card"] is False
    assert types["g5g.xlarge"]["arch"] == "arm64"


def test_a_cloud_that_cannot_be_read_keeps_its_file(gcp: Api, tmp_path: Path) -> None:
    assert refresh(gcp, tmp_path)["ok"]
    before = file_of(tmp_path, "gcp").read_text()
    gcp.cloud.denied.add("compute.machineTypes.list")
    row = refresh(gcp, tmp_path)
    assert not row["ok"]
    assert "compute.machineTypes.list" in row["message"]
    assert "is as it was" in row["message"]
    assert file_of(tmp_path, "gcp").read_text() == before


def test_an_arm_machine_needs_an_image_of_its_own(gcp: Api, tmp_path: Path) -> None:
    add(
        gcp.server,
        MachineType(name="a4x-highgpu-4g", accelerator="nvidia-gb200", gpus=4, vcpus=140, memory_gib=884, arch="arm64"),
    )
    assert refresh(gcp, tmp_path)["ok"]
    cloud = CLOUDS["gcp"].factory(gcp.server.settings(), tmp_path)
    offer = Offer("gcp", "us-central1", "us-central1-a", "a4x-highgpu-4g", Market.SPOT, None, "GB200", 4)
    outcome = cloud.launch(request_at(offer, "n1"), TIMEOUT_S)
    assert isinstance(outcome, Fatal)
    assert "a CPU of kind arm64" in outcome.message
    assert "gcp.images.GB200" in outcome.message
    assert not gcp.launches()
