"""A job's report as Markdown, and as one HTML file with plots. Pure: from the JSON of `/v1/jobs/JOB/report`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from supervisor.cli.durations import duration
from supervisor.cli.happenings import dollars
from supervisor.cli.show import counted
from supervisor.plots import Band, Line, plot

MAX_PAUSES_SHOWN = 20
# As supervisor.curve.Cause, for people.
CAUSES = {
    "preempted": "preemption, with notice",
    "lost": "node lost without notice",
    "drained": "node drained",
    "unhealthy": "unhealthy GPU",
    "slow": "slow node",
    "hung": "steps hung",
    "failed": "the program failed",
    "paused": "the job was paused",
    "scaled": "scaled down",
    "joined": "nodes joined",
    "re-formed": "workers restarted",
}


@dataclass(frozen=True, slots=True)
class Table:
    """One part of the report."""

    title: str
    columns: Sequence[str]  # none: the first column of each row is a heading
    rows: Sequence[Sequence[str]]
    note: str = ""  # below it


def tables(report: Mapping[str, Any]) -> list[Table]:
    """Return what both forms show."""
    return [
        Table("", (), list(_summary(report))),
        _speeds(report),
        _pauses(report),
        *([_newest_pauses(report)] if report["pauses"]["newest"] else []),
    ]


def _summary(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    nodes, cost = report["nodes"], report["cost"]
    yield "state", str(report["sentence"])
    yield "command", " ".join(report["command"])
    yield (
        "nodes",
        f"{nodes['training']} of {nodes['desired']} (min {nodes['min']}, max {nodes['max']}), {report['market']}",
    )
    ended = f", ended {_date(report['ended_at'])}" if report["ended_at"] else ""
    yield "submitted", f"{_date(report['submitted_at'])}{ended}"
    share = report["stepping_s"] / report["elapsed_s"] if report["elapsed_s"] > 0 else 0.0
    yield (
        "time",
        f"{duration(report['elapsed_s'])}, of which steps were made for {duration(report['stepping_s'])} ({share:.0%})",
    )
    samples = f", {report['samples']:,} samples" if report["samples"] else ""
    yield "progress", f"step {report['step']:,}, {counted(report['epoch'], 'epoch')} complete{samples}"
    if report["loss"] is not None:
        yield "loss", f"{report['loss']:.4f}"
    if report["kind"] != "data":
        yield "checkpoint", f"step {report['checkpoint_step']:,}"
    unpriced = (
        f"; {cost['nodes_unpriced']} machines without a known price are not counted" if cost["nodes_unpriced"] else ""
    )
    yield "cost", f"{dollars(cost['usd'])}, {dollars(cost['usd_per_hour'])} per hour now{unpriced}"
    if report["usd_per_epoch"] is not None:
        yield "cost per epoch", dollars(report["usd_per_epoch"])
    yield "on-demand", _on_demand(report)


def _on_demand(report: Mapping[str, Any]) -> str:
    found = report["on_demand"]
    if found["usd"] is None:
        return f"not known: {found['problem'] or 'it has had no machine'}"
    saved = "" if found["saved"] is None else f"; {found['saved']:.0%} saved"
    estimated = ", estimated for machines that are no longer listed" if found["estimated"] else ""
    return (
        f"the same machine hours would have cost {dollars(found['usd'])} at today's on-demand prices{saved}{estimated}"
    )


def _speeds(report: Mapping[str, Any]) -> Table:
    rows = [
        (
            str(each["nodes"]),
            duration(each["seconds"]),
            f"{each['steps']:,}",
            f"{each['steps_per_s']:.3g}",
            "" if each["samples_per_s"] is None else f"{each['samples_per_s']:,.1f}",
            f"{each['efficiency']:.0%}",
        )
        for each in report["speeds"]
    ]
    note = (
        "Efficiency: speed per node, relative to the fewest nodes seen. Pauses do not count."
        if rows
        else "no steps yet"
    )
    return Table("Speed", ("nodes", "time", "steps", "steps/s", "samples/s", "efficiency"), rows, note)


def _pauses(report: Mapping[str, Any]) -> Table:
    found = report["pauses"]
    by_cause = sorted(found["by_cause"], key=lambda each: -each["seconds"])
    rows = [(_cause(each), str(each["pauses"]), _seconds(each["seconds"])) for each in by_cause]
    note = f"{counted(found['count'], 'pause')}, {_seconds(found['seconds'])} in all" if found["count"] else "none"
    return Table("Pauses", ("cause", "pauses", "in all"), rows, note)


def _newest_pauses(report: Mapping[str, Any]) -> Table:
    newest = report["pauses"]["newest"][-MAX_PAUSES_SHOWN:]
    rows = [
        (_date(each["at"]), _seconds(each["seconds"]), _cause(each), str(each["round"]), str(each["nodes"]))
        for each in reversed(newest)
    ]
    return Table("Newest pauses", ("since", "lasted", "cause", "next round", "its nodes"), rows)


def _cause(each: Mapping[str, Any]) -> str:
    return CAUSES.get(each["cause"], str(each["cause"]))


def _seconds(value: float | None) -> str:
    return "not watched" if value is None else f"{value:.1f} s" if value < 60 else duration(value)


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


# -- Markdown ------------------------------------------------------------------------------------------------


def markdown(report: Mapping[str, Any]) -> str:
    """Return Markdown for an issue, a note, a terminal."""
    lines = [f"# {_cell(report['name'])}", ""]
    for table in tables(report):
        lines += [f"## {table.title}", ""] if table.title else []
        if table.rows:
            columns = table.columns or ("", "")
            lines += [_row(columns), _row(["---"] * len(columns)), *(_row(map(_cell, row)) for row in table.rows), ""]
        lines += [_cell(table.note), ""] if table.note else []
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    """Return a text in one line, without what Markdown would take for its own."""
    text = " ".join(text.split())
    return "".join(f"\\{each}" if each in "\\|`*_<>[]" else each for each in text)


# -- HTML ----------------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --fg: #1f2328; --bg: #ffffff; --dim: #59636e; --grid: #d1d9e0; --a: #0969da;
  --b: #bc4c00; --pause: rgba(207, 34, 46, 0.18); }
@media (prefers-color-scheme: dark) {
  :root { --fg: #f0f6fc; --bg: #0d1117; --dim: #9198a1; --grid: #3d444d; --a: #4493f8; --b: #f0883e;
    --pause: rgba(248, 81, 73, 0.28); } }
body { margin: 2rem auto; max-width: 58rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; color: var(--fg);
  background: var(--bg); }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin: 1.8rem 0 0.4rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { text-align: left; padding: 0.2rem 1.2rem 0.2rem 0; border-bottom: 1px solid var(--grid); vertical-align: top;
  overflow-wrap: anywhere; }
th { color: var(--dim); font-weight: 600; white-space: nowrap; }
p, figcaption { color: var(--dim); margin: 0.3rem 0; } figure { margin: 1.2rem 0; }
figcaption b { color: var(--fg); } svg { width: 100%; height: auto; }
svg text { font-size: 12px; fill: var(--dim); } .grid { stroke: var(--grid); } .pause { fill: var(--pause); }
polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; } polyline.a { stroke: var(--a); }
polyline.b { stroke: var(--b); } circle.a { fill: var(--a); } circle.b { fill: var(--b); }
.key-a { color: var(--a); } .key-b { color: var(--b); }
"""


def html(report: Mapping[str, Any]) -> str:
    """Return one file; it loads nothing."""
    first, *rest = [_html_table(table) for table in tables(report)]
    name = escape(str(report["name"]))
    made = f"<p>Made by spotsupctl report, {_date(report['now'])}.</p>"
    parts = [f"<h1>{name}</h1>", first, *_figures(report), *rest, made]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def _html_table(table: Table) -> str:
    head = f"<tr>{''.join(f'<th>{escape(each)}</th>' for each in table.columns)}</tr>" if table.columns else ""
    rows = "\n".join(_html_row(row, heading=not table.columns) for row in table.rows)
    title = f"<h2>{escape(table.title)}</h2>\n" if table.title else ""
    note = f"\n<p>{escape(table.note)}</p>" if table.note else ""
    return f"{title}<table>\n{head}\n{rows}\n</table>{note}" if table.rows else f"{title}{note}"


def _html_row(row: Sequence[str], *, heading: bool) -> str:
    kinds = ["th" if heading and not number else "td" for number in range(len(row))]
    return f"<tr>{''.join(f'<{kind}>{escape(each)}</{kind}>' for kind, each in zip(kinds, row, strict=True))}</tr>"


def _figures(report: Mapping[str, Any]) -> Iterator[str]:
    points, since = report["points"], report["submitted_at"]
    length_s = max([report["elapsed_s"], *(each["at"] - since for each in points)])
    bands = list(_bands(report))

    def over_time(name: str) -> list[tuple[float, float]]:
        return [(each["at"] - since, each[name]) for each in points if each[name] is not None]

    sampled = any(each["samples"] for each in points)
    speed, counted_as = ("samples", "samples") if sampled else ("steps", "step")
    on_demand = list(zip([each["at"] - since for each in points], report["on_demand"]["by_point"], strict=False))
    cost = [Line("cost", over_time("usd"), unit="$"), Line("on-demand", on_demand, "b", unit="$")]
    losses = [(each["at"] - since, each["loss"]) for each in _made(points) if each["loss"] is not None]
    yield _figure("Loss", plot("Loss", [Line("loss", losses)], bands, length_s))
    yield _figure(
        f"{speed.capitalize()} per second",
        plot("Speed", [Line(f"{speed} per second", _rates(points, counted_as, since))], bands, length_s),
        "between two points, pauses included",
    )
    yield _figure("Nodes", plot("Nodes", [Line("nodes", over_time("nodes"), steps=True, whole=True)], bands, length_s))
    key = '<span class="key-a">spent</span>, <span class="key-b">at on-demand prices</span>' if on_demand else "spent"
    yield _figure("Cost", plot("Cost", cost, bands, length_s), key)
    if bands:
        yield "<p>Marked in red: pauses.</p>"


def _figure(title: str, svg: str, key: str = "") -> str:
    note = f", {key}" if key else ""
    return f"<figure>\n<figcaption><b>{escape(title)}</b>{note}</figcaption>\n{svg}\n</figure>"


def _bands(report: Mapping[str, Any]) -> Iterator[Band]:
    for each in report["pauses"]["newest"]:
        begin_s = each["at"] - report["submitted_at"]
        label = f"{_cause(each)}: {_seconds(each['seconds'])}"
        yield Band(begin_s, begin_s + (each["seconds"] or 0.0), label)


def _made(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return those of steps: without the start, and without an end that only says what it costs by now."""
    made = [each for each in points if each["step"]]
    if len(made) > 1 and made[-1]["step"] == made[-2]["step"]:
        made.pop()
    return made


def _rates(points: Sequence[Mapping[str, Any]], name: str, since: float) -> list[tuple[float, float]]:
    """Return what was done per second between two points; steps that were made again count once."""
    return [
        (two["at"] - since, max(0.0, two[name] - one[name]) / (two["at"] - one["at"]))
        for one, two in pairwise(_made(points))
        if two["at"] > one["at"]
    ]
