"""`submit --explain`: the steps on nodes, from assumed facts; nothing is submitted, and no secret is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from spotsup.archive import Archive

import bootstrap.steps
from bootstrap.assumed import assumed
from bootstrap.container.image import image_of
from bootstrap.model import Setup, Skip, Unfit
from bootstrap.steps import plan
from provisioners.aws.settings import AwsSettings
from provisioners.base import Market, Offer
from supervisor.api.app import create_app
from supervisor.api.quote import Quote
from supervisor.api.security.gate import MAX_BLOB_BYTES
from supervisor.api.service import Service
from supervisor.api.submit.explain import MAX_NODE_PLANS, Explainer, sample_offers
from supervisor.cli.show import node_plan_lines
from supervisor.config import Config, NodeConfig
from supervisor.spec import parse_spec
from tests.sim.harness import empty_world
from tests.support.hosts import host_on
from tests.unit.quoting import Api

SECRET = "hunter2"  # noqa: S105 - made up
T4 = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Market.SPOT, 0.2, gpu="T4", gpus=1)
BIGGER = Offer("aws", "us-east-1", "us-east-1a", "g4dn.2xlarge", Market.SPOT, 0.3, gpu="T4", gpus=1)
FOUR = Offer("aws", "us-east-1", "us-east-1b", "g4dn.12xlarge", Market.SPOT, 1.3, gpu="T4", gpus=4)
STEPS = [name for name, _ in bootstrap.steps.STEPS]


BODY = {"spec": {"name": "job", "nodes": 2, "run": "t.py"}, "code_sha256": "0" * 64, "code_bytes": 1000, "lock": None}


def posted(body: dict[str, Any], *offers: Offer, config: Config | None = None) -> tuple[httpx.Response, Service]:
    """The answer of a daemon on these offers."""
    world = empty_world()
    daemon = world.daemon
    quoted = Quote(2, offers, known=bool(offers), warnings=())
    service = Service(
        daemon.journal,
        daemon.leader,
        world.clock,
        ["aws", "local"],
        lambda *_: True,
        lambda _: quoted,
        hosted=["local"],
    )
    explainer = Explainer(config or Config(), "/home/me")
    app = create_app(service, lambda: daemon.loop.status, world.clock, "0", explainer=explainer)
    return Api(app).post("/v1/explain", body), service


def explained(*offers: Offer, cloud: str = "aws", **more: Any) -> tuple[dict[str, Any], list[Any]]:
    settings = AwsSettings(regions=("us-east-1",), ssh_user="ubuntu")
    config = Config.model_validate({"aws": settings, "node": NodeConfig(python="/opt/python", env={"TOKEN": SECRET})})
    spec = {"name": "job", "nodes": 2, "run": "t.py", "placement": {"cloud": cloud}, "env": {"KEY": SECRET}, **more}
    if cloud == "aws" and not more.get("storage"):
        spec["checkpoints"] = "none"
    answer, service = posted({**BODY, "spec": spec}, *offers, config=config)
    assert answer.status_code == 200, answer.text
    assert SECRET not in answer.text
    return answer.json(), service.jobs.all()


def step(found: dict[str, Any], name: str) -> dict[str, Any]:
    row: dict[str, Any] = next(each for each in found["node_plans"][0]["steps"] if each["step"] == name)
    return row


def test_all_steps_on_a_gpu_machine_are_shown_and_nothing_is_submitted() -> None:
    storage = [{"mount": "/mnt/out", "nfs": "server:/out"}]
    found, jobs = explained(T4, resources={"gpu": "T4", "gpus_per_node": 1}, storage=storage)
    assert jobs == []
    assert found["offers"][0]["instance_type"] == "g4dn.xlarge"
    (plan_,) = found["node_plans"]
    assert [each["step"] for each in plan_["steps"]] == STEPS
    assert not [each for each in plan_["steps"] if "unfit" in each]
    assert any("NVIDIA driver" in sentence for sentence in plan_["assumptions"])
    assert step(found, "mounts")["commands"][1]["what"] == "mount server:/out at /mnt/out"
    assert step(found, "gpu-check")["commands"][1]["what"] == "compute on 1 T4"
    assert step(found, "agent")["commands"][-1]["as_root"] is True
    text = "\n".join(node_plan_lines(plan_))
    assert SECRET not in text
    assert "mount server:/out at /mnt/out  (as root, 210 s at most)" in text
    assert "nothing needed: ena, no EFA" in text


def test_instance_types_with_the_same_steps_share_a_plan() -> None:
    found, _ = explained(T4, T4, BIGGER, FOUR)
    assert [each["instance_types"] for each in found["node_plans"]] == [
        ["g4dn.xlarge", "g4dn.2xlarge"],
        ["g4dn.12xlarge"],
    ]


def test_of_many_instance_types_the_first_ones_are_planned() -> None:
    many = tuple(replace(T4, instance_type=f"type-{number}") for number in range(2 * MAX_NODE_PLANS))
    spec = parse_spec({"name": "job", "nodes": 1, "run": "t.py"})
    found = sample_offers(Quote(1, (T4, *many), known=True, warnings=()), spec)
    assert [offer.instance_type for offer in found] == ["g4dn.xlarge", "type-0", "type-1"]
    assert len(found) == MAX_NODE_PLANS


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"code_bytes": MAX_BLOB_BYTES + 1}, "body.code_bytes"),
        ({"code_bytes": -1}, "body.code_bytes"),
        ({"code_sha256": "../../etc/passwd"}, "body.code_sha256"),
        ({"lock": {"kind": "uv", "file": "uv.lock", "sha256": "$(id)"}}, "body.lock.sha256"),
        ({"more": 1}, "body.more"),
    ],
)
def test_a_malformed_body_is_refused(change: dict[str, Any], where: str) -> None:
    answer, _ = posted({**BODY, **change})
    assert answer.status_code == 422
    assert f"the request is wrong at {where}: " in answer.text


def test_without_offers_the_plan_follows_the_jobs_own_request() -> None:
    found, _ = explained(resources={"gpu": "V100", "gpus_per_node": 8})
    assert found["offers_known"] is False
    assert (found["node_plans"][0]["gpu"], found["node_plans"][0]["gpus"]) == ("V100", 8)
    spec = parse_spec({"name": "job", "nodes": 1, "run": "t.py", "resources": {"instance_types": ["p3.2xlarge"]}})
    assert sample_offers(Quote(1, (), known=False, warnings=()), spec)[0].instance_type == "p3.2xlarge"


def test_a_container_image_is_pulled_and_docker_installed_where_it_is_not_assumed() -> None:
    image = f"docker://nvcr.io/nvidia/pytorch@sha256:{'a' * 64}"
    found, _ = explained(T4, environment=image, resources={"gpu": "T4", "gpus_per_node": 1})
    steps = [command["what"] for command in step(found, "container")["commands"]]
    assert steps[1] == f"pull {image.removeprefix('docker://')}"
    assert steps[-1] == "check that the image has torch"
    assert (
        "Docker is installed, ubuntu has access to it, and it does not have the image yet"
        in found["node_plans"][0]["assumptions"]
    )
    setup = Setup("n1", b"{}", Archive.of(b"c"), Archive.of(b"t"), host=host_on("gcp", "T4", 1), image=image_of(image))
    guess = assumed(setup, "me", "/home/me")
    assert "Docker is not installed" in guess.assumptions
    assert str({each.name: each.decision for each in plan(guess.facts, setup)}["container"]).startswith(
        "(Run(what='install Docker'"
    )


def test_on_the_local_cloud_the_system_is_not_changed() -> None:
    found, _ = explained(Offer("local", "local", "local-a", "small", Market.SPOT, 0.1), cloud="local")
    assert "this computer" in found["node_plans"][0]["assumptions"][0]
    assert "skip" in step(found, "hygiene")
    commands = [each for row in found["node_plans"][0]["steps"] for each in row.get("commands", ())]
    assert commands
    assert not [each for each in commands if each.get("as_root")]


@pytest.mark.parametrize("gpu", ["V100", "T4", "A100", "H100", ""])
@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_every_clouds_assumed_machine_can_be_prepared(cloud: str, gpu: str) -> None:
    host = host_on(cloud, gpu, 8 if gpu else 0)
    config = json.dumps({"checkpoints": ""}).encode()
    setup = Setup("n1", config, Archive.of(b"c"), Archive.of(b"t"), host=host, dead_man=True)
    guess = assumed(setup, "ubuntu", "/home/ubuntu")
    planned = {each.name: each.decision for each in plan(guess.facts, setup)}
    assert not [each for each in planned.values() if isinstance(each, Unfit)]
    assert isinstance(planned["gpu"], Skip) is not bool(gpu), "persistence mode, where there is a GPU"
