"""Why each machine is asked for by a call of its own (docs/decisions/0009): what the SDKs' requests for several at once
can have of each machine, and what differs between the requests of two nodes of one job.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import botocore.session
from google.cloud import compute_v1

from provisioners.base import Market, Offer, Unknown
from supervisor.model import NodeRecord
from supervisor.planner.actions import Action, Launch, LaunchDone, Outcome
from supervisor.runtime.actor import ThreadActor
from supervisor.spec import MAX_NODES, MAX_SPARES
from tests.support.machines import new_key
from tests.unit import test_aws_rules as aws
from tests.unit import test_gcp_rules as gcp

OTHER = "job-abcde-2"


def test_a_bulk_insertion_can_give_each_machine_a_name_and_no_user_data_metadata_or_labels() -> None:
    resource = compute_v1.BulkInsertInstanceResource.meta.fields
    assert {"count", "min_count", "per_instance_properties", "instance_properties"} <= set(resource)
    of_each = set(compute_v1.BulkInsertInstanceResourcePerInstanceProperties.meta.fields)
    assert of_each == {"name", "hostname"}, "more can differ now: read docs/decisions/0009-clouds.md again"
    first, second = _two(gcp.REQUEST, lambda request: gcp.body(request, gcp.PLAIN))
    assert _differing(first, second) == {"name", "metadata", "labels", "disks"}


def test_the_requests_of_ec2_for_several_instances_have_one_token_one_user_data_and_one_set_of_tags() -> None:
    ec2 = botocore.session.get_session().get_service_model("ec2")
    run = ec2.operation_model("RunInstances").input_shape.members
    assert {run[name].type_name for name in ("ClientToken", "UserData")} == {"string"}
    fleet = ec2.operation_model("CreateFleet").input_shape.members
    of_each = fleet["LaunchTemplateConfigs"].member.members["Overrides"].member.members
    assert not {"UserData", "TagSpecifications", "ClientToken"} & set(of_each), "read docs/decisions/0009-clouds.md"
    first, second = _two(aws.REQUEST, lambda request: aws.parameters(request, aws.PLAIN))
    assert _differing(first, second) == {"ClientToken", "UserData", "TagSpecifications"}


def test_all_machines_of_the_largest_job_are_asked_for_at_the_same_time() -> None:
    count = MAX_NODES + MAX_SPARES
    all_at_once, ended = threading.Barrier(count, timeout=30.0), threading.Semaphore(0)
    offer = Offer("local", "region", "zone", "small", Market.SPOT, 0.1)

    def perform(action: Action) -> Outcome:
        assert isinstance(action, Launch)
        all_at_once.wait()  # none goes on before each of them is under way
        return LaunchDone(action.node.id, offer, Unknown("no answer"))

    actor = ThreadActor(perform, ended.release)
    for number in range(count):
        actor.start(Launch(NodeRecord(f"job-{number}", "job", f"job-{number}", offer, 0.0)))
    assert all(ended.acquire(timeout=60.0) for _ in range(count))
    outcomes = [outcome for _, outcome in actor.collect()]
    assert [each for each in outcomes if isinstance(each, LaunchDone)] == outcomes
    assert {each.outcome for each in outcomes if isinstance(each, LaunchDone)} == {Unknown("no answer")}


def _two(request: Any, made: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The requests for two nodes of one job."""
    other = replace(request, node=OTHER, token=OTHER, host_key=replace(request.host_key, **_key()))
    return made(request), made(other)


def _key() -> dict[str, str]:
    made = new_key()
    return {"public": made.public, "private_openssh": made.private_openssh}


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> set[str]:
    return {key for key in {*first, *second} if first.get(key) != second.get(key)}
