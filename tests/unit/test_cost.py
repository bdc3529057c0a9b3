"""What `spotsupctl cost` and `top` show, and how `ssh` trusts one host key only."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from provisioners.base import EndCause
from supervisor.api.app import create_app
from supervisor.api.jobs.views import cost_row, job_row, node_rows
from supervisor.api.security.unix_socket import PEER, user_name
from supervisor.cli.show import (
    show_cost_of_job,
    show_costs,
    show_costs_by_month,
    show_costs_by_purpose,
    show_costs_by_user,
    show_limits,
    show_top,
)
from tests.sim.harness import empty_world, machine_of, service, training_world
from tests.sim.promises import jobs_of, settled


def test_cost_counts_billed_nodes_gone_nodes_and_nodes_without_a_price(capsys: pytest.CaptureFixture[str]) -> None:
    world = training_world(limits={"usd": 50.0})
    world.run(360.0)
    world.cloud.end(machine_of(world, 0), EndCause.PREEMPTED)
    assert world.run_until(lambda w: len(jobs_of(w)["job"].nodes) > 3 and settled(w), 200.0)
    now = world.clock.now()
    cost = cost_row(jobs_of(world)["job"], now)
    assert cost["nodes_billed"] == 3
    assert cost["usd_per_hour"] == pytest.approx(0.3)
    assert cost["usd"] == pytest.approx(0.03, abs=0.02)
    assert cost["usd"] == pytest.approx(sum(node["usd"] for node in cost["node_list"]), abs=1e-3)
    assert len(cost["node_list"]) == 4
    show_costs([cost])
    printed = capsys.readouterr().out
    assert "$50.00" in printed
    assert printed.strip().endswith("in all, $0.3000 per hour now")
    show_cost_of_job([{**cost, "nodes_unpriced": 1, "dropped_nodes_usd": 1.5}])
    printed = capsys.readouterr().out
    assert "and $1.50 for older nodes that are no longer listed" in printed
    assert "(1 without a known price)" in printed


def test_cost_sums_what_each_users_jobs_have_cost(capsys: pytest.CaptureFixture[str]) -> None:
    world = training_world(owner="ann")
    world.run(360.0)
    row = cost_row(jobs_of(world)["job"], world.clock.now())
    assert (row["owner"], row["usd"] > 0) == ("ann", True)
    assert job_row(jobs_of(world)["job"], "", world.clock.now())["owner"] == "ann"
    capsys.readouterr()
    show_costs_by_user([row, {**row, "owner": "", "usd": 99.0}, row])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [["USER", "JOBS"], ["-", "1"], ["ann", "2"]]
    assert lines[0][-6:] == ["USEFUL", "PAUSE", "BOOT", "IDLE", "LOST", "UNKNOWN"]


@pytest.mark.long
def test_cost_says_what_money_was_for(capsys: pytest.CaptureFixture[str]) -> None:
    world = training_world()
    world.run(3600.0)
    row = cost_row(jobs_of(world)["job"], world.clock.now())
    months = [{"month": "", "purposes": {**row["purposes"], "useful": 5.0}}, *row["months"]]
    capsys.readouterr()
    show_costs_by_purpose([row])
    show_costs_by_month([{**row, "months": months}])
    show_cost_of_job([{**row, "on_demand": {"usd": 7.5, "estimated": True, "saved": 0.9, "problem": ""}}])
    show_cost_of_job([{**row, "on_demand": {"usd": None, "estimated": False, "saved": None, "problem": "no answer"}}])
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[:5]] == ["JOB", "job", "all", "MONTH", "earlier"]
    assert "of that useful $" in printed
    assert "the same machine hours on demand: about $7.50" in printed
    assert "on demand: not known (no answer)" in printed


def test_a_request_is_of_the_user_at_the_other_end_of_the_socket() -> None:
    assert user_name((PEER, 0)) == "root"
    assert user_name((PEER, 4_000_000_000)) == "uid-4000000000"
    assert user_name(("127.0.0.1", 0)) == user_name(None) == "", "no user of this computer"


def test_a_job_is_of_the_user_who_submits_it() -> None:
    world = empty_world()
    app = create_app(service(world), lambda: world.daemon.loop.status, world.clock, "0")
    body = {"spec": {"name": "job", "nodes": 1, "run": "t.py"}, "submission": "12345678"}

    async def submitted() -> dict[str, Any]:
        transport = httpx.ASGITransport(app, client=(PEER, 0))
        async with httpx.AsyncClient(transport=transport, base_url="http://spotsupd") as client:
            stored = (await client.put("/v1/blobs", content=b"code")).json()
            reply = await client.post("/v1/jobs", json={**body, "code_sha256": stored["sha256"]})
            found: dict[str, Any] = reply.json()
            return found

    assert asyncio.run(submitted())["owner"] == jobs_of(world)["job"].record.owner == "root"


def test_limits_shows_what_is_allowed_and_what_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    world = training_world(limits={"hours": 2, "usd": 50.0})
    world.run(90.0)
    show_limits(job_row(jobs_of(world)["job"], "3 of 3 nodes train", world.clock.now()))
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert float(rows["hours"][0]) == pytest.approx(90 / 3600, abs=0.01)
    assert rows["hours"][1:] == ["2"]
    assert rows["usd_per_hour"] == ["0.3", "any"]
    assert rows["app_failures"] == ["0", "3"]
    assert rows["job"] == ["running", "3", "of", "3", "nodes", "train"]


def test_top_shows_the_daemon_the_jobs_and_the_nodes_that_are_not_gone(capsys: pytest.CaptureFixture[str]) -> None:
    world = training_world()
    view, now = jobs_of(world)["job"], world.clock.now()
    nodes = node_rows(view, now)
    gone = {**nodes[0], "id": "job-long-gone", "state": "gone"}
    found = {
        "daemon": {"headline": "watching 1 job"},
        "usd": 1.0,
        "usd_per_hour": 0.3,
        "jobs": [job_row(view, "training", now)],
        "nodes": [*nodes, gone],
    }
    show_top(found)
    printed = capsys.readouterr().out
    assert "watching 1 job" in printed
    assert all(node in printed for node in view.nodes)
    assert "job-long-gone" not in printed
