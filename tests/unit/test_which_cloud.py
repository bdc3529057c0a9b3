"""Where a job goes whose file names no cloud."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.api.service import Service
from supervisor.errors import CommandRefusedError, UsageError
from tests.sim.harness import empty_world

JOB: dict[str, Any] = {"name": "job", "nodes": 1, "run": "train.py"}
ON_AWS = {**JOB, "placement": {"cloud": "aws"}}
STORED = {"mount": "/mnt/out", "nfs": "fs:/out"}
DATA = {"name": "job", "kind": "data", "run": "copy"}


def service(*clouds: str) -> Service:
    """Of a daemon that has these clouds."""
    world = empty_world()
    return Service(world.daemon.journal, world.daemon.leader, world.clock, clouds, lambda *_: True, hosted=["local"])


@pytest.mark.parametrize("clouds", [("local",), ("aws",)])
def test_the_only_cloud_is_the_default_and_stored_with_the_job(clouds: tuple[str, ...]) -> None:
    api = service(*clouds)
    kept = {**JOB, "checkpoints": "none"}
    for given in (kept, {**kept, "placement": {"spread": "region"}}):
        assert api.submissions.check(given).spec.placement.cloud == clouds[0]
    given, code = {**kept, "placement": {"regions": ["r"]}}, api.submissions.put_blob(b"code")
    stored = api.submissions.submit(given, code, "once").record.spec
    assert (stored.placement.cloud, stored.placement.regions) == (clouds[0], ("r",))


def test_of_several_clouds_one_has_to_be_named() -> None:
    api = service("local", "aws", "gcp")
    refused = r"several clouds, and the job names none: set `placement.cloud` \(--cloud\) to local, aws or gcp$"
    for ask in (api.submissions.check, api.job_files.plan):
        with pytest.raises(CommandRefusedError, match=refused):
            ask(JOB)
    assert (
        api.submissions.check({**JOB, "checkpoints": "none", "placement": {"cloud": "gcp"}}).spec.placement.cloud
        == "gcp"
    )


@pytest.mark.parametrize(("cloud", "refused"), [("local", False), ("aws", True)])
def test_what_the_default_cloud_demands_holds_for_a_job_that_does_not_name_it(cloud: str, refused: bool) -> None:
    api = service(cloud)
    asked: Any = DATA
    if not refused:
        assert api.submissions.check(asked).spec.placement.cloud == cloud
        return
    with pytest.raises(UsageError, match="a data job needs instance types without a GPU"):
        api.submissions.check(asked)


SAY = r"add a writable file system .*, or write `checkpoints: none` if the program keeps its own, or .* lost node$"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, f"^job job is refused: its checkpoints would end with its nodes: {SAY}"),
        ({"storage": [{**STORED, "mode": "ro"}, {"mount": "/mnt/fast", "scratch": True}]}, "would end with its nodes"),
        ({"checkpoints": "/home/ck"}, f"`checkpoints` is /home/ck, which is on none of its shared .*: {SAY}"),
        ({"checkpoints": "/mnt/output", "storage": [STORED]}, "`checkpoints` is /mnt/output, which is on none of"),
        ({"checkpoints": "none"}, ""),
        ({"checkpoints": "s3://bucket/prefix"}, ""),
        ({"storage": [STORED]}, ""),
        ({"storage": [STORED], "checkpoints": "/mnt/out"}, ""),
        ({"storage": [STORED], "checkpoints": "/mnt/out/mine"}, ""),
    ],
)
def test_a_job_on_a_rented_cloud_has_to_say_where_its_checkpoints_outlive_its_nodes(more: Any, why: str) -> None:
    api = service("local", "aws")
    if why:
        for ask in (api.submissions.check, api.job_files.plan):
            with pytest.raises(CommandRefusedError, match=why):
                ask({**ON_AWS, **more})
        with pytest.raises(CommandRefusedError, match=why):
            api.submissions.submit({**ON_AWS, **more}, api.submissions.put_blob(b"code"), "once")
    else:
        assert api.submissions.check({**ON_AWS, **more}).spec.placement.cloud == "aws"


def test_checkpoints_of_the_local_cloud_and_data_jobs_need_no_storage() -> None:
    api = service("local", "aws")
    for more in ({}, {"checkpoints": "/home/ck"}, {"checkpoints": "none"}):
        assert api.submissions.check({**JOB, "placement": {"cloud": "local"}, **more})
    data = {**DATA, "placement": {"cloud": "aws"}, "resources": {"instance_types": ["m7i.large"]}}
    assert api.submissions.check(data)
