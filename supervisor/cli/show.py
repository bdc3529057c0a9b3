"""Tables and sentences for people. What is shortened here is complete with --all or in `-o json`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from supervisor.cli.durations import duration
from supervisor.cli.happenings import dollars, story, totals

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
PIPE_WIDTH = 200
TOP_LINES = 8  # of a screen of `top` that are neither jobs nor nodes
MIN_ROWS = 3  # of jobs or nodes in `top`, however small the screen
# Of what a rank works in a step: a shorter wait for it is noise, as in supervisor/api/jobs/ranks.py.
MIN_WAITED = 0.1
MAX_NODE_ROWS = 16  # above, nodes that are alike share a row
MIN_GROUP = 3
MAX_ENDED_JOBS = 10
MAX_EVENTS = 50
PURPOSES = ("USEFUL", "PAUSE", "BOOT", "IDLE", "LOST", "UNKNOWN")  # of money, as in `cost -o json`
STEP_WIDTH = 12  # the longest step's name and a space


def console_of() -> Console:
    console = Console(highlight=False)
    # A pipe has no width, so wrap late.
    return console if console.is_terminal else Console(width=PIPE_WIDTH, highlight=False)


def table_of(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def state_text(state: str) -> str:
    colour = _COLOURS.get(state)
    return f"[{colour}]{state}[/{colour}]" if colour else state


def _ago(at: float | None) -> str:
    return "" if not at else duration(time.time() - at)


def counted(number: int, noun: str) -> str:
    """1 node, 2 nodes."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


# -- jobs --------------------------------------------------------------------------------------------------


def show_jobs(jobs: Sequence[Mapping[str, Any]], *, show_all: bool = False) -> None:
    """`spotsupctl list`: running jobs, and the newest ended ones."""
    console = console_of()
    if not jobs:
        console.print("no jobs; `spotsupctl submit JOB.yaml` submits one")
        return
    ended = {job["name"] for job in jobs if job["ended_at"]}
    newest = [job["name"] for job in jobs if job["name"] in ended][:MAX_ENDED_JOBS]
    hidden = set() if show_all else ended - set(newest)
    _print_jobs([job for job in jobs if job["name"] not in hidden])
    if hidden:
        console.print(f"{counted(len(hidden), 'older job')} ended; --all lists all")


def _print_jobs(jobs: Sequence[Mapping[str, Any]]) -> None:
    table = table_of("JOB", "STATE", "NODES", "ROUND", "STEP", "LOSS", "ELAPSED", "COST")
    for job in jobs:
        nodes = job["nodes"]
        elapsed_s = (job["ended_at"] or time.time()) - job["submitted_at"]
        loss = "" if job["loss"] is None else f"{job['loss']:.4f}"
        row = (
            job["name"],
            state_text(job["state"]),
            f"{nodes['training']}/{nodes['desired']}",
            str(job["round"] or ""),
        )
        step = str(job["step"] or "") if job["progress_fraction"] is None else f"{job['progress_fraction']:.0%}"
        table.add_row(*row, step, loss, duration(elapsed_s), dollars(job["usd"]))
    console_of().print(table)


def show_runs(runs: Sequence[Mapping[str, Any]], limit: int) -> None:
    """`spotsupctl runs`: ended jobs."""
    if not runs:
        console_of().print("no job has ended yet; `spotsupctl list` shows those that run")
        return
    table = table_of("JOB", "RESULT", "ENDED", "TOOK", "TRAINED", "STEP", "LOSS", "COST", "WHY")
    for row in runs[:limit]:
        loss = "" if row["loss"] is None else f"{row['loss']:.4f}"
        ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["ended_at"]))
        times = (ended, duration(row["wall_s"]), duration(row["trained_s"]))
        cells = (str(row["step"] or ""), loss, dollars(row["usd"]), escape(row["reason"].partition("\n")[0]))
        table.add_row(row["name"], state_text(row["state"]), *times, *cells)
    console_of().print(table)
    if len(runs) > limit:
        console_of().print(f"{counted(len(runs) - limit, 'older run')}; --limit {len(runs)} lists all")


def show_differences(found: Mapping[str, Any]) -> None:
    """`spotsupctl runs A B`: first what was asked for, then what came of it."""
    table = table_of("", *found["jobs"])
    for key, values in found["spec"].items():
        table.add_row(key, *("-" if each is None else escape(str(each)) for each in values))
    if not found["spec"]:
        table.add_row("job file and code", "the same", "the same")
    for key, values in found["results"].items():
        table.add_row(key, *(escape(_result(key, each)) for each in values))
    console_of().print(table)


def _result(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key == "usd":
        return dollars(value)
    if key == "trained_s":
        return duration(value)
    return f"{value:.4f}" if key == "loss" else str(value).partition("\n")[0]


def _by(job: Mapping[str, Any]) -> str:
    return f"   by {escape(job['owner'])}" if job["owner"] else ""


def show_job(job: Mapping[str, Any], *, show_all: bool = False) -> None:
    """`spotsupctl status`."""
    console = console_of()
    numbers = job["nodes"]
    console.print(f"[bold]{job['name']}[/bold]  {state_text(job['state'])}  {escape(job['sentence'])}")
    loss = f", loss {job['loss']:.4f}" if job["loss"] is not None else ""
    steps = f"step {job['step']}{loss}   checkpoint at step {job['checkpoint_step']}"
    if job["kind"] == "data":
        known = job["progress_fraction"] is not None
        steps = (
            f"{job['progress_fraction']:.0%} {escape(job['progress_text'])}" if known else "no progress reported yet"
        )
    spares = f", spares {numbers['spares_ready']} of {numbers['spares']}" if numbers["spares"] else ""
    console.print(
        f"nodes {numbers['training']} of {numbers['desired']} (min {numbers['min']}, max {numbers['max']}){spares}"
        f"   round {job['round']}   {steps}"
    )
    if len(kinds := job.get("alternatives", [])) > 1:
        parts = (f"{each['name']} ({counted(each['nodes'], 'node')})" for each in kinds)
        console.print(f"alternatives, {escape(job['prefer'])}: {escape(', '.join(parts))}")
    if deadline := job.get("deadline"):
        console.print(f"[red]{deadline['text']}[/red]" if deadline["missed"] else deadline["text"])
    if job["checkpoint_problem"]:
        console.print(f"[red]checkpoints are not being written:[/red] {escape(job['checkpoint_problem'])}")
    console.print(
        f"submitted {_ago(job['submitted_at'])} ago   trained {duration(job['trained_s'])}   "
        f"cost {dollars(job['usd'])}   task id {job['task_id']}{_by(job)}"
    )
    if pauses := job["pauses"]:
        console.print(f"last pause: {escape(pauses[-1]['text'])}")
    if waits := _longest_wait(job.get("ranks", [])):
        console.print(waits)
    if job["node_list"]:
        console.print()
        show_nodes(job["node_list"], show_all=show_all)


def _longest_wait(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return for which rank all others wait for a tenth of its work or more; "" for none."""
    last = max(ranks, key=lambda each: float(each["waited_s"]), default=None)
    if last is None or last["waited_s"] < MIN_WAITED * last["step_s"]:
        return ""
    waited, works = (f"{1000 * last[key]:.0f} ms" for key in ("waited_s", "step_s"))
    return f"all others wait {waited} in each step for rank {last['rank']} on {last['node']}, which works {works}"


# -- nodes -------------------------------------------------------------------------------------------------


def show_nodes(nodes: Sequence[Mapping[str, Any]], *, show_all: bool = False) -> None:
    """`spotsupctl nodes`: nodes that are not gone; many that are alike share a row."""
    console = console_of()
    shown = [node for node in nodes if show_all or node["state"] != "gone"]
    if shown:
        _print_nodes([[node] for node in shown] if show_all else _groups(shown))
    if gone := len(nodes) - len(shown):
        console.print(f"{counted(gone, 'node')} {'is' if gone == 1 else 'are'} gone; --all lists every node")
    elif not nodes:
        console.print("no nodes")


def _groups(nodes: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return one group per row of the table: alone, or with all nodes of the same job, state and offer."""
    if len(nodes) <= MAX_NODE_ROWS:
        return [[node] for node in nodes]
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for node in nodes:
        key = (node["job"], _node_state(node), node["zone"], node["instance_type"], node["market"])
        groups.setdefault(key, []).append(node)
    return [row for group in groups.values() for row in ([group] if len(group) >= MIN_GROUP else [[n] for n in group])]


def _print_nodes(groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    table = table_of("NODE", "STATE", "RANK", "FOR", "WHERE", "COST", "WHY")
    for group in groups:
        first = group[0]
        where = f"{first['zone']} {first['instance_type']} {first['market']}"
        name = first["id"] if len(group) == 1 else f"{len(group)} nodes of {first['job']}"
        ranks = sorted(node["rank"] for node in group if node["rank"] is not None)
        rank = "" if not ranks else str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}–{ranks[-1]}"
        reasons = {node["error"].splitlines()[0] if node["error"] else node["reason"] for node in group}
        why = reasons.pop() if len(reasons) == 1 else ""
        since, usd = max(node["since"] for node in group), sum(node["usd"] for node in group)
        table.add_row(name, state_text(_node_state(first)), rank, _ago(since), where, dollars(usd), escape(why))
    console_of().print(table)


def _node_state(node: Mapping[str, Any]) -> str:
    return "spare" if node["spare"] else str(node["state"])


# -- money -------------------------------------------------------------------------------------------------


def show_queue(rows: Sequence[Mapping[str, Any]]) -> None:
    """`spotsupctl queue`."""
    if not rows:
        console_of().print("no job waits")
        return
    table = table_of("PLACE", "JOB", "OWNER", "PRIORITY", "WAITS", "NEEDS", "REASON", "STARTS WHEN")
    for row in rows:
        needs = counted(row["nodes"], "node")
        if row["gpus"]:
            needs += f", {row['gpus']} × {row['gpu'] or 'GPU'}"
        place, owner = str(row["place"] or "-"), escape(row["owner"] or "-")
        waits = duration(row["waiting_s"])
        texts = (escape(row["reason"]), escape(row["starts_when"]))
        table.add_row(place, row["job"], owner, str(row["priority"]), waits, needs, *texts)
    console_of().print(table)


def show_costs(costs: Sequence[Mapping[str, Any]]) -> None:
    """`spotsupctl cost`."""
    if not costs:
        console_of().print("no jobs")
        return
    table = table_of("JOB", "STATE", "COST", "LIMIT", "PER HOUR", "LIMIT", "MACHINES")
    for cost in costs:
        limits = [_money(cost["limit_usd"]), _money(cost["limit_usd_per_hour"])]
        machines = f"{cost['nodes_billed']}{_unpriced(cost)}"
        cells = (dollars(cost["usd"]), limits[0], dollars(cost["usd_per_hour"]), limits[1], machines)
        table.add_row(cost["name"], state_text(cost["state"]), *cells)
    console_of().print(table)
    total, per_hour = (sum(cost[key] for cost in costs) for key in ("usd", "usd_per_hour"))
    console_of().print(f"{dollars(total)} in all, {dollars(per_hour)} per hour now")


def show_costs_by_user(costs: Sequence[Mapping[str, Any]]) -> None:
    """`spotsupctl cost --by user`: the most expensive first."""
    users = {cost["owner"]: [each for each in costs if each["owner"] == cost["owner"]] for cost in costs}
    table = table_of("USER", "JOBS", "COST", "PER HOUR", *PURPOSES)
    for user, jobs in sorted(users.items(), key=lambda each: -sum(cost["usd"] for cost in each[1])):
        sums = [sum(cost[key] for cost in jobs) for key in ("usd", "usd_per_hour")]
        purposes = _purpose_cells(cost["purposes"] for cost in jobs)
        table.add_row(escape(user or "-"), str(len(jobs)), *map(dollars, sums), *purposes)
    console_of().print(table)


def show_costs_by_purpose(costs: Sequence[Mapping[str, Any]]) -> None:
    """`spotsupctl cost --by purpose`: a row for each job, and their sum."""
    table = table_of("JOB", "COST", *PURPOSES)
    for cost in costs:
        table.add_row(cost["name"], dollars(cost["usd"]), *_purpose_cells([cost["purposes"]]))
    table.add_row("all", dollars(sum(cost["usd"] for cost in costs)), *_purpose_cells(c["purposes"] for c in costs))
    console_of().print(table)


def show_costs_by_month(costs: Sequence[Mapping[str, Any]]) -> None:
    """`spotsupctl cost --by month`: the newest month last."""
    months: dict[str, list[dict[str, float]]] = {}
    for row in (row for cost in costs for row in cost["months"]):
        months.setdefault(row["month"], []).append(row["purposes"])
    table = table_of("MONTH (UTC)", "COST", *PURPOSES)
    for month, rows in sorted(months.items()):
        usd = sum(sum(row.values()) for row in rows)
        table.add_row(month or "earlier", dollars(usd), *_purpose_cells(rows))
    console_of().print(table)


def _purpose_cells(rows: Iterable[dict[str, float]]) -> list[str]:
    found = list(rows)
    sums = [sum(row[purpose.lower()] for row in found) for purpose in PURPOSES]
    return [dollars(usd) if usd else "-" for usd in sums]


def show_cost_of_job(costs: Sequence[Mapping[str, Any]]) -> None:
    """`spotsupctl cost JOB`."""
    cost = costs[0]
    table = table_of("NODE", "STATE", "TYPE", "MARKET", "HOURS", "PER HOUR", "COST")
    for node in cost["node_list"]:
        cells = (
            node["instance_type"],
            node["market"],
            f"{node['hours']:.2f}",
            _money(node["usd_per_hour"]) or "unknown",
            dollars(node["usd"]),
        )
        table.add_row(node["id"], state_text(node["state"]), *cells)
    console = console_of()
    console.print(table)
    if cost["dropped_nodes_usd"]:
        console.print(f"and {dollars(cost['dropped_nodes_usd'])} for older nodes that are no longer listed")
    now = f"{dollars(cost['usd_per_hour'])} per hour now{_unpriced(cost)}"
    console.print(f"{cost['name']}: {dollars(cost['usd'])} in all, {now}")
    if parts := [f"{name} {dollars(usd)}{_share(usd, cost)}" for name, usd in cost["purposes"].items() if usd]:
        console.print(f"of that {', '.join(parts)}")
    if cost.get("on_demand"):
        console.print(_on_demand(cost["on_demand"]))


def _share(usd: float, cost: Mapping[str, Any]) -> str:
    return f" ({usd / cost['usd']:.0%})" if cost["usd"] else ""


def _on_demand(row: Mapping[str, Any]) -> str:
    """Return what on-demand machines would have cost."""
    if row["usd"] is None:
        return f"on demand: not known ({escape(row['problem'])})"
    about = "about " if row["estimated"] else ""
    return f"the same machine hours on demand: {about}{dollars(row['usd'])}"


def show_limits(job: Mapping[str, Any]) -> None:
    """`spotsupctl limits`."""
    table = table_of("LIMIT", "USED", "ALLOWED")
    for name, row in job["limits"].items():
        table.add_row(name, f"{row['used']:.4g}", "any" if row["limit"] is None else f"{row['limit']:g}")
    console_of().print(table)
    console_of().print(f"{job['name']}  {state_text(job['state'])}  {escape(job['sentence'])}")


def _money(value: float | None) -> str:
    return "" if value is None else dollars(value)


def _unpriced(cost: Mapping[str, Any]) -> str:
    return f" ({cost['nodes_unpriced']} without a known price)" if cost["nodes_unpriced"] else ""


# -- everything --------------------------------------------------------------------------------------------


def show_top(found: Mapping[str, Any]) -> None:
    """`spotsupctl top`: the daemon, running jobs and their nodes, as far as the screen has room."""
    console = console_of()
    console.print(f"[bold]{time.strftime('%H:%M:%S')}[/bold]  {escape(found['daemon']['headline'])}")
    console.print(f"{dollars(found['usd_per_hour'])} per hour, {dollars(found['usd'])} in all\n")
    jobs = [job for job in found["jobs"] if not job["ended_at"]] or found["jobs"][:MIN_ROWS]
    show_jobs(jobs, show_all=True)
    if groups := _groups([node for node in found["nodes"] if node["state"] != "gone"]):
        room = max(MIN_ROWS, console.height - len(jobs) - TOP_LINES) if console.is_terminal else len(groups)
        console.print()
        _print_nodes(groups[:room])


# -- before a job is submitted -----------------------------------------------------------------------------


def show_plan(plan: Mapping[str, Any], limit: int) -> None:
    """`spotsupctl plan`: the offers in the order in which they are asked for."""
    table = table_of("CLOUD", "ZONE", "TYPE", "GPUS", "MARKET", "USD/HOUR", "PRICE FROM")
    for offer in plan["offers"][:limit]:
        gpus = f"{offer['gpus']} {offer['gpu'] or ''}".strip() if offer["gpus"] else ""
        price = "unknown" if offer["usd_per_hour"] is None else f"{offer['usd_per_hour']:.4f}"
        price += ", above the limit" if offer.get("above_limit") else ""
        cells = (offer["cloud"], offer["zone"], offer["instance_type"], gpus, offer["market"], price)
        table.add_row(*cells, escape(offer["price_source"] or ""))
    console = console_of()
    console.print(table)
    if (more := plan["offers_total"] - min(limit, len(plan["offers"]))) > 0:
        console.print(f"and {more} more")
    nodes = counted(plan["nodes"], "node")
    if plan["usd_per_hour"] is None:
        console.print(f"{nodes}; the price of the first offer is not known")
    else:
        console.print(f"{nodes}: ${plan['usd_per_hour']:.2f} per hour at the first offer's price")


def show_node_plans(plans: Sequence[Mapping[str, Any]]) -> None:
    """`spotsupctl submit --explain`: the assumptions and steps for each kind of node."""
    for plan in plans:
        print()
        for line in node_plan_lines(plan):
            print(line)


def node_plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield one kind of node."""
    gpus = f" ({plan['gpus']} {plan['gpu'] or 'GPU'})" if plan["gpus"] else ""
    yield f"On each node, {' or '.join(plan['instance_types'])}{gpus}:"
    for sentence in plan["assumptions"]:
        yield f"  assumed: {sentence}"
    for step in plan["steps"]:
        for number, text in enumerate(_step_texts(step)):
            yield f"  {step['step'] if not number else '':<{STEP_WIDTH}}{text}"


def _step_texts(step: Mapping[str, Any]) -> list[str]:
    if "skip" in step:
        return [f"nothing needed: {step['skip']}"]
    if "unfit" in step:
        return [f"impossible, the node would fail: {step['unfit']}"]
    return [_command_text(command) for command in step["commands"]]


def _command_text(command: Mapping[str, Any]) -> str:
    root = "as root" if command.get("as_root") else ""
    limit = f"{command['timeout_s']:g} s at most" if "timeout_s" in command else ""
    notes = ", ".join(note for note in (root, limit) if note)
    return f"{command['what']}  ({notes})" if notes else str(command["what"])


# -- output of a job ---------------------------------------------------------------------------------------


def show_story(events: Sequence[Mapping[str, Any]], usd: float, *, show_all: bool = False) -> None:
    """`spotsupctl events JOB`: the newest happenings. `usd`: what the job has cost."""
    console, lines = console_of(), story(events)
    shown = lines if show_all else lines[-MAX_EVENTS:]
    if len(shown) < len(lines):
        console.print(f"{counted(len(lines) - len(shown), 'earlier line')}; --all has all")
    table = table_of("TIME", "WHAT HAPPENED")
    for line in shown:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at))
        table.add_row(at, escape(line.text))
    console.print(table)
    sums = totals(events).sentence()
    console.print(f"in all: {sums + '; ' if sums else ''}cost {dollars(usd)}")


def show_events(events: Sequence[Mapping[str, Any]], *, show_all: bool = False) -> None:
    """`spotsupctl events --raw`: the newest ones."""
    console = console_of()
    if not events:
        console.print("no events; those of a job: `spotsupctl events JOB`, of all: `spotsupctl events --jobs`")
        return
    shown = events if show_all else events[-MAX_EVENTS:]
    if len(shown) < len(events):
        console.print(f"{counted(len(events) - len(shown), 'earlier event')}; --all lists all")
    table = table_of("TIME", "EVENT", "")
    for event in shown:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"]))
        table.add_row(at, event["kind"], escape(event["text"]))
    console.print(table)
