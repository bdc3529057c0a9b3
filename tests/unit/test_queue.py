"""What people see of the jobs that wait."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from supervisor.api.queue import queue_rows
from supervisor.api.routes import create_app
from supervisor.cli.show import show_queue
from tests.sim.harness import empty_world, service, submit
from tests.unit.scene import NOW, J, as_job, job, member, spec, view


def test_the_queue_lists_the_jobs_that_wait_with_what_each_needs_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    large = spec(resources={"gpu": "V100", "gpus_per_node": 4})
    waits = job(4, J.WAITING, min_nodes=2, spec=large, owner="ann", submitted_at=NOW - 9)
    views = [
        as_job(view(waits, []), "large"),
        as_job(view(job(2, J.STARTING), []), "starts"),
        as_job(view(job(1), [member(1)]), "runs"),
        as_job(view(job(2, J.PAUSED, pause_requested_at=NOW), []), "paused"),
        as_job(view(job(2, J.FAILED, ended_at=NOW), []), "failed"),
    ]
    rows = queue_rows(views, lambda name: f"{name} finds [no] capacity", NOW)
    assert [row["job"] for row in rows] == ["starts", "large"], "the oldest first"
    assert {key: rows[1][key] for key in ("owner", "state", "nodes", "gpus", "gpu", "reason", "waiting_s")} == {
        "owner": "ann",
        "state": "waiting",
        "nodes": 2,
        "gpus": 8,
        "gpu": "V100",
        "reason": "large finds [no] capacity",
        "waiting_s": 500.0,
    }
    show_queue(rows)
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["JOB", "OWNER", "STATE", "WAITS", "NEEDS", "REASON"]
    assert first.split()[:6] == ["starts", "-", "starting", "8m20s", "1", "node"]
    assert second.strip().split(maxsplit=4)[4] == "2 nodes, 8 × V100  large finds [no] capacity"
    show_queue([])
    assert capsys.readouterr().out == "no job waits\n"


def test_the_api_serves_the_queue() -> None:
    world = empty_world()
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 0)
    submit(world, "job", 2, 2, 2, owner="ann")
    app = create_app(service(world), lambda: world.daemon.loop.status, world.clock, "0")

    async def read() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://spotsupd") as client:
            found: list[dict[str, Any]] = (await client.get("/v1/queue")).json()
            return found

    world.run(30.0)
    (row,) = asyncio.run(read())
    assert (row["job"], row["owner"], row["nodes"]) == ("job", "ann", 2)
    assert "no capacity" in row["reason"]
