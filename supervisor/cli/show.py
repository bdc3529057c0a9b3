"""Tables for people."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_COLOURS = {
    "running": "green",
    "succeeded": "green",
    "member": "green",
    "ready": "cyan",
    "spare": "cyan",
    "degraded": "yellow",
    "waiting": "yellow",
    "suspect": "yellow",
    "draining": "yellow",
    "failed": "red",
    "lost": "red",
    "cancelled": "dim",
    "paused": "dim",
    "gone": "dim",
}
WIDE = 200
GONE_SHOWN = 3
TOP_LINES = 8  # of a screen of `top` that are neither jobs nor nodes


def _console() -> Console:
    console = Console(highlight=False)
    # A pipe has no width: cut nothing there.
    return console if console.is_terminal else Console(width=WIDE, highlight=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _state(state: str) -> str:
    colour = _COLOURS.get(state)
    return f"[{colour}]{state}[/{colour}]" if colour else state


def _ago(at: float | None) -> str:
    return "" if not at else duration(time.time() - at)


def duration(seconds: float) -> str:
    """12s, 3m05s, 2h07m."""
    whole = int(max(0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _usd(value: float) -> str:
    return f"${value:.2f}" if value >= 1 else f"${value:.4f}"


def show_jobs(jobs: Sequence[dict[str, Any]]) -> None:
    """`spotsupctl list`."""
    if not jobs:
        _console().print("no jobs; `spotsupctl submit JOB.yaml` submits one")
        return
    table = _table("JOB", "STATE", "NODES", "ROUND", "STEP", "LOSS", "AGE", "COST")
    for job in jobs:
        nodes = job["nodes"]
        age_s = (job["ended_at"] or time.time()) - job["submitted_at"]
        loss = "" if job["loss"] is None else f"{job['loss']:.4f}"
        row = (job["name"], _state(job["state"]), f"{nodes['training']}/{nodes['desired']}", str(job["round"] or ""))
        step = str(job["step"] or "") if job.get("fraction") is None else f"{job['fraction']:.0%}"
        table.add_row(*row, step, loss, duration(age_s), _usd(job["usd"]))
    _console().print(table)


def show_job(job: dict[str, Any]) -> None:
    """`spotsupctl status`."""
    console = _console()
    numbers = job["nodes"]
    console.print(f"[bold]{job['name']}[/bold]  {_state(job['state'])}  {escape(job['sentence'])}")
    loss = f", loss {job['loss']:.4f}" if job["loss"] is not None else ""
    steps = f"step {job['step']}{loss}   checkpoint at step {job['checkpoint_step']}"
    if job.get("kind") == "data":  # a daemon that runs on from before an upgrade knows no kinds
        told = job["fraction"] is not None
        steps = f"{job['fraction']:.0%} {escape(job['progress_text'])}" if told else "no progress told yet"
    spares = f", spares {numbers['spares_ready']} of {numbers['spares']}" if numbers["spares"] else ""
    console.print(
        f"nodes {numbers['training']} of {numbers['desired']} (min {numbers['min']}, max {numbers['max']}){spares}"
        f"   round {job['round']}   {steps}"
    )
    if job["problem"]:
        console.print(f"[red]checkpoints are not being written:[/red] {escape(job['problem'])}")
    console.print(f"submitted {_ago(job['submitted_at'])} ago   cost {_usd(job['usd'])}   task id {job['task_id']}")
    if job["node_list"]:
        console.print()
        gone = [node for node in job["node_list"] if node["state"] == "gone"]
        hidden = {node["id"] for node in gone[:-GONE_SHOWN]}
        show_nodes([node for node in job["node_list"] if node["id"] not in hidden])
        if hidden:
            console.print(f"and {len(hidden)} more that are gone; `spotsupctl nodes` has all")


def show_nodes(nodes: Sequence[dict[str, Any]]) -> None:
    """`spotsupctl nodes`."""
    if not nodes:
        _console().print("no nodes")
        return
    table = _table("NODE", "STATE", "RANK", "FOR", "WHERE", "COST", "WHY")
    for node in nodes:
        where = f"{node['zone']} {node['instance_type']} {node['market']}"
        why = node["error"].splitlines()[0] if node["error"] else node["reason"]
        rank = "" if node["rank"] is None else str(node["rank"])
        state = "spare" if node["spare"] else node["state"]
        cells = (node["id"], _state(state), rank, _ago(node["since"]), where, _usd(node["usd"]))
        table.add_row(*cells, escape(why))
    _console().print(table)


def show_costs(costs: Sequence[dict[str, Any]]) -> None:
    """`spotsupctl cost`."""
    if not costs:
        _console().print("no jobs")
        return
    table = _table("JOB", "STATE", "COST", "LIMIT", "PER HOUR", "LIMIT", "MACHINES")
    for cost in costs:
        limits = [_money(cost["limit_usd"]), _money(cost["limit_usd_per_hour"])]
        machines = f"{cost['billed']}{_unpriced(cost)}"
        cells = (_usd(cost["usd"]), limits[0], _usd(cost["usd_per_hour"]), limits[1], machines)
        table.add_row(cost["name"], _state(cost["state"]), *cells)
    _console().print(table)
    total, per_hour = (sum(cost[key] for cost in costs) for key in ("usd", "usd_per_hour"))
    _console().print(f"{_usd(total)} in all, {_usd(per_hour)} per hour now")


def show_cost_of_job(costs: Sequence[dict[str, Any]]) -> None:
    """`spotsupctl cost JOB`."""
    cost = costs[0]
    table = _table("NODE", "STATE", "MARKET", "HOURS", "PER HOUR", "COST")
    for node in cost["node_list"]:
        cells = (node["market"], f"{node['hours']:.2f}", _money(node["usd_per_hour"]) or "unknown", _usd(node["usd"]))
        table.add_row(node["id"], _state(node["state"]), *cells)
    console = _console()
    console.print(table)
    if cost["forgotten_usd"]:
        console.print(f"and {_usd(cost['forgotten_usd'])} for nodes of long ago")
    now = f"{_usd(cost['usd_per_hour'])} per hour now{_unpriced(cost)}"
    console.print(f"{cost['name']}: {_usd(cost['usd'])} in all, {now}")


def _money(value: float | None) -> str:
    return "" if value is None else _usd(value)


def _unpriced(cost: dict[str, Any]) -> str:
    return f" ({cost['unpriced']} without a known price)" if cost["unpriced"] else ""


def show_top(found: dict[str, Any]) -> None:
    """`spotsupctl top`: the daemon, all jobs, and every node that is not gone, as far as there is room."""
    console = _console()
    console.print(f"[bold]{time.strftime('%H:%M:%S')}[/bold]  {escape(found['daemon']['headline'])}")
    console.print(f"{_usd(found['usd_per_hour'])} per hour, {_usd(found['usd'])} in all\n")
    jobs = [job for job in found["jobs"] if not job["ended_at"]] or found["jobs"][:GONE_SHOWN]
    show_jobs(jobs)
    here = [node for node in found["nodes"] if node["state"] != "gone"]
    if here:
        room = max(GONE_SHOWN, console.height - len(jobs) - TOP_LINES) if console.is_terminal else len(here)
        console.print()
        show_nodes(here[:room])


def show_plan(plan: dict[str, Any], limit: int) -> None:
    """`spotsupctl plan`: the offers in the order in which they are asked for."""
    table = _table("CLOUD", "ZONE", "TYPE", "GPUS", "MARKET", "USD/HOUR", "PRICE FROM")
    for offer in plan["offers"][:limit]:
        gpus = f"{offer['gpus']} {offer['gpu'] or ''}".strip() if offer["gpus"] else ""
        price = "unknown" if offer["usd_per_hour"] is None else f"{offer['usd_per_hour']:.4f}"
        cells = (offer["cloud"], offer["zone"], offer["instance_type"], gpus, offer["market"], price)
        table.add_row(*cells, escape(offer["price_source"] or ""))
    console = _console()
    console.print(table)
    if (more := plan["offers_in_all"] - min(limit, len(plan["offers"]))) > 0:
        console.print(f"and {more} more")
    nodes = f"{plan['nodes']} node{'' if plan['nodes'] == 1 else 's'}"
    if plan["usd_per_hour"] is None:
        console.print(f"{nodes}; the price of the first offer is not known")
    else:
        console.print(f"{nodes}: ${plan['usd_per_hour']:.2f} per hour at the first offer's price")


def show_network(result: dict[str, Any]) -> None:
    """`spotsupctl bench-network`: as nccl-tests has it, for float and sum."""
    table = _table()
    for column in ("SIZE (B)", "COUNT", "TIME (us)", "ALGBW (GB/s)", "BUSBW (GB/s)", "WRONG"):
        table.add_column(column, justify="right")
    for row in result["rows"]:
        size, count, wrong = str(row["bytes"]), str(row["bytes"] // 4), str(row["wrong"])
        measured = (f"{row['time_us']:.1f}", f"{row['algbw_gb_s']:.3f}", f"{row['busbw_gb_s']:.3f}")
        table.add_row(size, count, *measured, wrong)
    console = _console()
    console.print(table)
    best = max((row["busbw_gb_s"] for row in result["rows"]), default=0.0)
    console.print(
        f"all_reduce of float32 over {result['ranks']} ranks on {result['nodes']} nodes ({escape(result['device'])}), "
        f"{result['backend']}, torch {result['torch']}; best bus bandwidth {best:.3f} GB/s"
    )


def show_events(events: Sequence[dict[str, Any]]) -> None:
    """`spotsupctl events`."""
    table = _table("TIME", "WHAT", "")
    for event in events:
        at = time.strftime("%H:%M:%S", time.localtime(event["at"]))
        table.add_row(at, event["kind"], escape(event["text"]))
    _console().print(table)


class LogPrinter:
    """Prints chunks that were not printed yet, each line named by its node where there are several."""

    def __init__(self, *, named: bool) -> None:
        self._named = named
        self._seen: dict[str, str] = {}
        self._open: dict[str, str] = {}

    def show(self, chunks: Sequence[dict[str, Any]]) -> None:
        """Print what is new. A line that is not complete yet waits for its rest."""
        for chunk in chunks:
            node = chunk["node"]
            if chunk["chunk"] <= self._seen.get(node, ""):
                continue
            self._seen[node] = chunk["chunk"]
            lines = (self._open.pop(node, "") + chunk["text"]).split("\n")
            if lines[-1]:
                self._open[node] = lines[-1]
            for line in lines[:-1]:
                print(f"{node} | {line}" if self._named else line)
