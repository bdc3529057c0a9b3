"""`build/scenario.html`: the day for who pays for it, and for who has to believe it. Pure, from `facts`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from supervisor.cli.durations import duration
from tests.scenario import pictures
from tests.scenario.pictures import clock

MAX_EVENTS = 400  # per job on the page; the JSON has all
STYLE = Path(__file__).with_name("page.css")
ENDED = {"succeeded": "finished", "failed": "failed", "cancelled": "cancelled", "paused": "paused"}
REPORTED = (
    "The planner, the loop, the journal, the sweeps and the election are the program's own. Clouds, machines, etcd and "
    "training processes are simulated: this many real ones do not fit on one computer. What real processes do, "
    "make demo, make ci and make chaos show. Prices are made up, of the usual size."
)


def html(day: Mapping[str, Any]) -> str:
    """One file that loads nothing."""
    title = "A day of spotsup"
    body = "\n".join(_broken(day) if not day["ok"] else _body(day))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{STYLE.read_text()}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n"
        "</html>\n"
    )


def _broken(day: Mapping[str, Any]) -> Iterator[str]:
    verdict = f"a promise was broken at {clock(day['second'])}"
    yield f'<h1>A day of spotsup</h1><p><span class="verdict bad">{verdict}</span></p>'
    yield f'<div class="card"><code>{escape(day["violation"])}</code></div>'
    yield f"<h2>Until then</h2>{_story(day['story'])}"
    yield f'<h2>The end of the log</h2><div class="card scroll"><pre>{escape(chr(10).join(day["log"]))}</pre></div>'
    yield _repeat(day["repeat"])


def _body(day: Mapping[str, Any]) -> Iterator[str]:
    total, promises, hours = day["total"], day["promises"], day["repeat"]["hours"]
    users = [user["name"] for user in day["users"]]
    yield "<h1>A day of spotsup</h1>"
    yield (
        f'<p class="dim">{total["jobs"]} jobs of {len(users)} users, {hours:g} hours, at most {day["limit_nodes"]} '
        f"nodes at a time, on spot machines of {len({pool['cloud'] for pool in day['pools']})} clouds.</p>"
        f'<p><span class="verdict">every promise kept</span> <small>{promises["checks"]:,} changes of the journal, '
        "each checked against all of them</small></p>"
    )
    yield (
        '<nav><a href="#what">What happened</a><a href="#money">Money</a><a href="#waits">Waits</a>'
        '<a href="#jobs">Jobs</a><a href="#market">Market</a><a href="#promises">Promises</a>'
        '<a href="#again">Again</a></nav>'
    )
    yield _tiles(total)
    marks = [(each["second"], each["text"]) for each in day["story"] if each["kind"] == "fault"]
    yield (
        '<h2>The cluster over the day</h2><p class="dim">Nodes that train, by user. Dashed red: something went wrong; '
        'point at it.</p><div class="card"><div class="wide-picture" tabindex="0">'
        + pictures.nodes_over_day(day["samples"], users, hours, day["limit_nodes"], marks)
        + "</div>"
        + pictures.key((f"u{number % 4}", user) for number, user in enumerate(users))
        + "</div>"
    )
    yield f'<h2 id="what">What happened</h2><div class="card">{_story(day["story"])}</div>'
    yield from _money(day)
    yield from _waits(day)
    yield from _jobs(day)
    if day["sweep"]:
        yield _sweep(day["sweep"])
    yield (
        '<h2 id="market">Market</h2><p class="dim">What each pool would have granted. The daemon does not know this: '
        f"it asks, and learns from the answers ({total['refusals']} refusals).</p>"
        f'<div class="card">{pictures.heat(day["pools"])}</div>'
    )
    yield _promises(day)
    yield _repeat(day["repeat"])


def _tiles(total: Mapping[str, Any]) -> str:
    ended = ", ".join(f"{count} {ENDED.get(state, state)}" for state, count in sorted(total["states"].items()))
    rest = total["preempted"] - total["noticed"]
    tiles = (
        ("spent", f"${total['usd']:,.2f}", f"${total['on_demand_usd']:,.2f} on demand"),
        ("saved", f"{total['saved'] or 0:.0%}", "against the same machine hours on demand"),
        (
            "goodput",
            f"{total['goodput'] or 0:.1%}",
            f"{total['useful_node_h']:,.0f} of {total['held_node_h']:,.0f} paid node-hours",
        ),
        ("jobs", str(total["jobs"]), ended),
        ("machines taken", str(total["preempted"]), f"{total['noticed']} with notice, {rest} without"),
        ("work done twice", f"{total['lost_node_h']:.2f} h", f"of nodes; {total['steps_lost']:,} steps"),
        ("pause, typical", _seconds(total["pause_median_s"]), f"95 % at most {_seconds(total['pause_p95_s'])}"),
        ("machines at the end", str(total["machines_left"]), f"of {total['machines']} that were rented"),
    )
    found = "".join(
        f'<div class="tile"><span class="name">{name}</span><b>{value}</b><span>{escape(note)}</span></div>'
        for name, value, note in tiles
    )
    return f'<div class="tiles">{found}</div>'


def _story(story: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(
        f'<li class="{each["kind"]}"><time>{clock(each["second"])}</time><span>{escape(each["text"])}</span></li>'
        for each in story
    )
    return f'<ol class="story">{rows}</ol>'


def _money(day: Mapping[str, Any]) -> Iterator[str]:
    total = day["total"]
    yield '<h2 id="money">Money</h2><p class="dim">Every dollar has a purpose.</p>'
    yield f'<div class="card">{pictures.purposes(day["purposes"])}</div>'
    rows = [
        (
            user["name"],
            _usd(user["usd"]),
            _saved(user),
            _usd(user["on_demand_usd"]),
            _share(user["useful_node_h"], user["held_node_h"]),
            f"{user['useful_node_h']:,.1f}",
            str(user["jobs"]),
            user["does"],
        )
        for user in day["users"]
    ]
    foot = (
        "all",
        _usd(total["usd"]),
        _saved(total),
        _usd(total["on_demand_usd"]),
        _share(total["useful_node_h"], total["held_node_h"]),
        f"{total['useful_node_h']:,.1f}",
        str(total["jobs"]),
        "",
    )
    # What a phone's width has room for comes first.
    head = ("user", "spent", "saved", "on demand", "goodput", "useful node-h", "jobs", "what for")
    yield _card(_table(head, rows, numbers=range(1, 7), foot=foot))


def _waits(day: Mapping[str, Any]) -> Iterator[str]:
    yield (
        '<h2 id="waits">Waits</h2><p class="dim">From when a job might begin to its first step; and all the time in '
        "which it wanted to train and had too few machines.</p>"
    )
    rows = [
        (
            user["name"],
            _seconds(user["first_wait_s"]["mean"]) if user["first_wait_s"] else "none began",
            _seconds(user["first_wait_s"]["max"]) if user["first_wait_s"] else "",
            _seconds(user["waited_s"]),
        )
        for user in day["users"]
    ]
    yield _card(_table(("user", "first step, mean", "longest", "waited in all"), rows, numbers=range(1, 4)))


def _jobs(day: Mapping[str, Any]) -> Iterator[str]:
    yield (
        '<h2 id="jobs">Jobs</h2><p class="dim">Open one for its nodes over the day, its events and its decisions.</p>'
    )
    for job in day["jobs"]:
        yield _job(job, day["repeat"]["hours"])


def _job(job: Mapping[str, Any], hours: float) -> str:
    nodes = job["nodes"]
    size = f"{nodes['desired']} × {job['gpu']}, {job['cloud']}"
    head = (
        f"<summary><b>{escape(job['name'])}</b><span>{escape(job['owner'])}</span>"
        f'<span class="wide dim">{escape(size)}</span>'
        f'<span><i class="state {job["state"]}">{escape(ENDED.get(job["state"], job["state"]))}</i></span>'
        f'<span class="wide n">{_usd(job["usd"])}</span><span class="wide n">{_saved(job)} saved</span></summary>'
    )
    ended = clock(job["ended_s"]) if job["ended_s"] is not None else "not by the end of the day"
    first = clock(job["first_step_s"]) if job["first_step_s"] is not None else "never"
    numbers = [
        ("why it is here", job["why"]),
        ("its end", job["reason"]),
        (
            "nodes",
            f"{nodes['desired']} ({nodes['min']} to {nodes['max']}), {job['gpu']} on {job['cloud']}, {job['market']}",
        ),
        ("submitted, first step, ended", f"{clock(job['submitted_s'])}, {first}, {ended}"),
        ("waited", f"{_seconds(job['waited_first_s'])} for the first step, {_seconds(job['waited_s'])} in all"),
        ("cost", f"{_usd(job['usd'])}; on demand {_usd(job['on_demand_usd'])}"),
        (
            "work",
            (
                f"{job['useful_node_h']:,.1f} useful of {job['held_node_h']:,.1f} paid node-hours; {job['rounds']} "
                f"rounds, {len(job['pauses_s'])} pauses of {_seconds(sum(job['pauses_s']))} in all"
            ),
        ),
        (
            "machines",
            (
                f"{job['machines']}, of which {job['on_demand_machines']} on demand; {job['preempted']} taken, "
                f"{job['noticed']} of them with notice; {job['steps_lost']:,} steps made again"
            ),
        ),
    ]
    if job["finish_by_s"]:
        kept = job["ended_s"] is not None and job["ended_s"] <= job["finish_by_s"]
        numbers.insert(2, ("deadline", f"{clock(job['finish_by_s'])}, {'kept' if kept else 'not kept'}"))
    table = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in numbers if value)
    shown = job["events"][-MAX_EVENTS:]
    left_out = len(job["events"]) - len(shown)
    note = f"<p><small>{left_out} earlier ones are in scenario.json.</small></p>" if left_out else ""
    rows = "".join(
        f'<tr><td class="nowrap">{_moment(each["second"])}</td>'
        f'<td class="nowrap"><small>{escape(each["kind"])}</small></td><td>{escape(each["text"])}</td></tr>'
        for each in shown
    )
    picture = pictures.lanes(job["timeline"], hours) if job["timeline"]["lanes"] else "<p>It never had a node.</p>"
    return (
        f'<details id="job-{escape(job["name"])}">{head}<div>{picture}<div class="scroll"><table>{table}</table></div>'
        f'<h3>Events and decisions</h3>{note}<div class="events" tabindex="0">'
        f"<table>{rows}</table></div></div></details>"
    )


def _sweep(sweep: Mapping[str, Any]) -> str:
    rows = [
        (
            each["name"],
            ", ".join(f"{key}={value}" for key, value in each["parameters"].items()),
            each["state"],
            f"{each['step']:,}",
            "" if each["loss"] is None else f"{each['loss']:.4f}",
            _usd(each["usd"]),
        )
        for each in sweep["members"]
    ]
    best = f" The best is {sweep['best']}." if sweep["best"] else ""
    table = _table(("job", "parameters", "state", "step", "loss", "cost"), rows, numbers=(3, 4, 5))
    return (
        f'<h2>The sweep {escape(sweep["name"])}</h2><p class="dim">{sweep["parallel"]} at a time.'
        f"{escape(best)}</p>{_card(table)}"
    )


def _promises(day: Mapping[str, Any]) -> str:
    found = day["promises"]
    rows = [(each["id"], each["name"], each["means"], "kept") for each in found["kept"]]
    decisions = ", ".join(f"{count:,} {name}" for name, count in day["total"]["decisions"].items())
    table = _table(("", "promise", "what was checked", ""), rows)
    return (
        f'<h2 id="promises">Promises</h2><p class="dim">The judges of make sim watched the day: '
        f"{found['events']:,} steps of time, {found['decisions']:,} looks of the daemons, {found['checks']:,} changes "
        f"of the journal. None was broken; {found['trained_on']} rounds met an outage and trained on. "
        f"{escape(found['not_here'])}</p>{_card(table)}"
        f"<p><small>Journaled before they were carried out: {escape(decisions)}. Commands: {day['total']['commands']} "
        f"acknowledged, {day['total']['refused_commands']} refused.</small></p>"
    )


def _repeat(found: Mapping[str, Any]) -> str:
    rows = [
        ("command", f"<code>{escape(found['command'])}</code>"),
        ("seed", str(found["seed"])),
        ("digest", f"<code>{found['digest']}</code> <small>equal for two equal days</small>"),
        (
            "market",
            escape(
                f"the recording {found['recording']}, others generated"
                if found["recording"]
                else "generated from the seed"
            ),
        ),
        ("versions", escape(f"spotsup {found['version']}, commit {found['commit']}, Python {found['python']}")),
        ("took", f"{found['cpu_s']:.0f} s of one core, {found['wall_s']:.0f} s by the clock"),
        ("what is real", escape(REPORTED)),
    ]
    table = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows)
    return f'<h2 id="again">Again</h2><div class="card scroll"><table>{table}</table></div>'


def _card(table: str) -> str:
    return f'<div class="card scroll">{table}</div>'


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = (), foot: Sequence[str] = ()
) -> str:
    right = set(numbers)

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if number in right else ''}>{escape(each)}</{tag}>" for number, each in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    last = f"<tfoot><tr>{cells(foot, 'td')}</tr></tfoot>" if foot else ""
    return f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{body}</tbody>{last}</table>"


def _usd(value: float) -> str:
    return f"${value:,.2f}"


def _saved(row: Mapping[str, Any]) -> str:
    return f"{1 - row['usd'] / row['on_demand_usd']:.0%}" if row["on_demand_usd"] else "–"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} s" if value < 120 else duration(value)


def _moment(second: float) -> str:
    return f"{clock(second)}:{int(second % 60):02d}"
