"""What docs/clouds.md says: configuration, permissions. tests/unit/test_reference.py holds the tables of codes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from supervisor.config import parse_config

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "clouds.md"


def test_the_configurations_are_taken() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        assert parse_config(tomllib.loads(block), "docs/clouds.md")


# -- permissions ---------------------------------------------------------------------------------------------


def policy(file: str = "aws-iam-policy.json") -> list[dict[str, Any]]:
    statements: list[dict[str, Any]] = json.loads((DOCS / "permissions" / file).read_text())["Statement"]
    return statements


def granted(file: str = "aws-iam-policy.json") -> set[str]:
    found = [each["Action"] for each in policy(file)]
    return {name for names in found for name in ([names] if isinstance(names, str) else names)}


def test_what_changes_something_is_bound_to_our_tag() -> None:
    for statement in policy():
        if statement["Sid"] in {"LaunchOnlyWithOurTag", "LaunchOnAnInterfaceOfOurs", "EndWhatHasOurTag"}:
            (condition,) = statement["Condition"]["Null"]
            assert condition.endswith("Tag/spotsup-cluster")
    for name in granted():
        if not re.match(r"\w+:(Describe|Get|List)", name):
            assert any("Condition" in each for each in policy() if name in each["Action"]), name


def test_a_machine_may_begin_with_a_new_interface_and_with_one_that_was_made_before_it() -> None:
    """RunInstances asks for a new interface's tags in the request, and for an existing one's at the resource."""
    launches = [
        each
        for each in policy()
        if "ec2:RunInstances" in each["Action"] and "network-interface" in str(each["Resource"])
    ]
    conditions = {key for each in launches for key in each["Condition"]["Null"]}
    assert conditions == {f"aws:{kind}Tag/spotsup-cluster" for kind in ("Request", "Resource")}


def test_a_launch_may_go_into_what_is_reserved() -> None:
    """RunInstances with a target asks for the reservation's ARN, too: AmazonEKSComputePolicy names it for that."""
    resources = [name for each in policy() if "ec2:RunInstances" in each["Action"] for name in each["Resource"]]
    assert "arn:aws:ec2:*:*:capacity-reservation/*" in resources
