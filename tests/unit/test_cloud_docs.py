"""What docs/clouds.md says: configuration, permissions. tests/unit/test_reference.py holds the tables of codes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from provisioners.aws.provisioner import AwsProvisioner
from provisioners.aws.settings import AwsSettings
from provisioners.base import LeftoverKind, OfferQuery, Unknown
from supervisor.config import parse_config
from tests.clouds import aws
from tests.support.machines import CLUSTER, TIMEOUT_S, request_for

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "clouds.md"


def test_the_configurations_are_taken() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        assert parse_config(tomllib.loads(block), "docs/clouds.md")


# -- permissions ---------------------------------------------------------------------------------------------

# Any credentials may ask whose they are: "GetCallerIdentity", AWS STS API reference.
NEEDS_NO_PERMISSION = {"sts:GetCallerIdentity"}


def do_everything(server: aws.AwsServer) -> None:
    """All that the daemon ever asks of EC2."""
    subnet = server.cloud.ec2.instances.backend("us-east-1").describe_subnets()[0]
    group = server.cloud.ec2.instances.backend("us-east-1").describe_security_groups()[0].id
    settings = AwsSettings(
        regions=("us-east-1",),
        endpoint=server.url,
        subnets={subnet.availability_zone: subnet.id},
        security_groups={"us-east-1": (group,)},
    )
    ec2 = AwsProvisioner(settings)
    ec2.check(30.0)
    ec2.offers(OfferQuery(), TIMEOUT_S)
    ec2.launch(request_for(ec2, "n1"), TIMEOUT_S)
    (machine,) = ec2.instances(CLUSTER, TIMEOUT_S)
    ec2.find(machine.token, TIMEOUT_S)
    ec2.console(machine.id, TIMEOUT_S)
    ec2.terminate(machine.id, TIMEOUT_S)
    server.cloud.leave_behind("us-east-1", {"spotsup-cluster": CLUSTER})
    left = ec2.leftovers(CLUSTER, TIMEOUT_S)
    assert {each.kind for each in left} == set(LeftoverKind)
    for each in left:
        ec2.remove(each, TIMEOUT_S)
    # A role for nodes, which moto would have to know.
    with_role = AwsProvisioner(settings.model_copy(update={"instance_profile": "spotsup-node"}))
    assert not isinstance(with_role.launch(request_for(ec2, "n2"), TIMEOUT_S), Unknown)


def policy() -> list[dict[str, Any]]:
    statements: list[dict[str, Any]] = json.loads((DOCS / "permissions" / "aws-iam-policy.json").read_text())[
        "Statement"
    ]
    return statements


def granted() -> set[str]:
    found = [each["Action"] for each in policy()]
    return {name for names in found for name in ([names] if isinstance(names, str) else names)}


def test_what_changes_something_is_bound_to_our_tag() -> None:
    for statement in policy():
        if statement["Sid"] in {"LaunchOnlyWithOurTag", "EndWhatHasOurTag"}:
            (condition,) = statement["Condition"]["Null"]
            assert condition.endswith("Tag/spotsup-cluster")
    for name in granted():
        if not re.match(r"\w+:(Describe|Get)", name):
            assert any("Condition" in each for each in policy() if name in each["Action"]), name
