"""Where a job goes whose file names no cloud."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.api.service import Service
from supervisor.errors import CommandRefusedError, UsageError
from tests.sim.harness import empty_world

JOB = {"name": "job", "nodes": 1, "run": "train.py"}
DATA = {"name": "job", "kind": "data", "run": "copy"}


def service(*clouds: str) -> Service:
    """Of a daemon that has these clouds."""
    world = empty_world()
    return Service(world.daemon.journal, world.daemon.leader, world.clock, clouds, lambda *_: True)


@pytest.mark.parametrize("clouds", [("local",), ("aws",)])
def test_the_only_cloud_is_the_default_and_stored_with_the_job(clouds: tuple[str, ...]) -> None:
    api = service(*clouds)
    for given in (JOB, {**JOB, "placement": {"spread": "region"}}):
        assert api.check(given)[0].placement.cloud == clouds[0]
    stored = api.submit({**JOB, "placement": {"regions": ["r"]}}, api.put_blob(b"code"), "once").record.spec
    assert (stored.placement.cloud, stored.placement.regions) == (clouds[0], ("r",))


def test_of_several_clouds_one_has_to_be_named() -> None:
    api = service("local", "aws", "gcp")
    refused = r"several clouds, and the job names none: set `placement.cloud` \(--cloud\) to local, aws or gcp$"
    for ask in (api.check, api.plan):
        with pytest.raises(CommandRefusedError, match=refused):
            ask(JOB)
    assert api.check({**JOB, "placement": {"cloud": "gcp"}})[0].placement.cloud == "gcp"


@pytest.mark.parametrize(("cloud", "refused"), [("local", False), ("aws", True)])
def test_what_the_default_cloud_demands_holds_for_a_job_that_does_not_name_it(cloud: str, refused: bool) -> None:
    api = service(cloud)
    asked: Any = DATA
    if not refused:
        assert api.check(asked)[0].placement.cloud == cloud
        return
    with pytest.raises(UsageError, match="a data job needs instance types without a GPU"):
        api.check(asked)
