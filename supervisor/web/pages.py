"""The pages: what each shows, from the source's data. No request is known here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from supervisor.api.jobs.queue import queue_rows, waits
from supervisor.api.jobs.ranks import is_waited_for
from supervisor.api.jobs.views import job_detail, job_row, node_rows
from supervisor.api.rows import NodeRow, RankRow
from supervisor.billing import Purpose, month_of
from supervisor.curve import Curve
from supervisor.errors import SpotsupError
from supervisor.model import Event, JobState, NodeState
from supervisor.planner.sentences import ENDED_AS
from supervisor.planner.world import JobView
from supervisor.pool_days import DAY_S
from supervisor.web import formats
from supervisor.web.attention import MAX_SHOWN, findings
from supervisor.web.charts import charts, spark, speed
from supervisor.web.heat import CELL_S, regions
from supervisor.web.source import Source
from supervisor.web.spending import PURPOSES, job_cost, spending_of, usd_by_purpose, usd_per_hour
from supervisor.web.timeline import CAUSES, KINDS, LEGEND, Window, short, ticks, timeline, window_of

TEMPLATES = Path(__file__).parent / "templates"
MAX_JOBS = 200
MAX_EVENTS = 200
MAX_LINES = 2000
MAX_TAIL_LINES = 60
MAX_SPARKS = 40
ADDED_UP_S = 10.0
MAX_ADDED_UP = 1000
WINDOWS_S: dict[str, float | None] = {"1h": 3600.0, "6h": 21600.0, "24h": 86400.0, "7d": 604800.0, "all": None}
TRAINING = frozenset({JobState.RUNNING, JobState.DEGRADED})
_NODE_ORDER = ("member", "ready", "bootstrap", "boot", "drain", "bad")


class Pages:
    """Each method returns a page of HTML. Whatever a field holds comes out escaped."""

    def __init__(self, source: Source, assets: Mapping[str, str], *, can_log_out: bool = False) -> None:
        """`assets`: file name -> its address. `can_log_out`: its readers have logged in with a token."""
        self._source = source
        self._added_up: dict[str, tuple[float, dict[Purpose, float]]] = {}  # by task id: when, and what
        self._jinja = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._jinja.globals |= {"asset": assets, "version": source.version, "cluster": source.cluster, "short": short}
        self._jinja.globals["can_log_out"] = can_log_out
        self._jinja.filters |= {
            "duration": formats.duration,
            "money": formats.money,
            "number": formats.number,
            "percent": formats.percent,
            "moment": formats.moment,
            "machine_moment": formats.machine_moment,
        }
        for name in self._jinja.list_templates():
            self._jinja.get_template(name)  # compiled now: it takes longer than the first page may

    def _page(self, template: str, title: str, **context: Any) -> str:
        source, status = self._source, self._source.status()
        return self._jinja.get_template(template).render(
            title=title,
            now=source.now(),
            headline=status.headline,
            etcd_away=status.etcd_away_since,
            standby_of=source.other_leader(),
            paused=source.paused(),
            **context,
        )

    def _usd(self, view: JobView) -> dict[Purpose, float]:
        """Return a job's dollars by purpose, a few seconds old at most: adding up a thousand nodes takes a while."""
        now, task = self._source.now(), view.record.task_id
        known = self._added_up.get(task)
        if known is not None and 0 <= now - known[0] < ADDED_UP_S:
            return known[1]
        if len(self._added_up) >= MAX_ADDED_UP:
            self._added_up.clear()
        found = usd_by_purpose(view, now)
        self._added_up[task] = (now, found)
        return found

    # -- overview ------------------------------------------------------------------------------------------

    def overview(self) -> str:
        """Return the page of all jobs, the fleet in one bar, and what needs attention."""
        source, now, status = self._source, self._source.now(), self._source.status()
        views = list(source.jobs())
        live = [view for view in views if not view.record.ended]
        ended = [view for view in views if view.record.ended]
        shown = sorted(live, key=lambda view: (_ORDER.get(view.record.state, 9), view.name)) + ended
        found = findings(views, status, now)
        rows = [self._job_line(view, curved=at < MAX_SPARKS) for at, view in enumerate(shown[:MAX_JOBS])]
        money = [job_cost(view, self._usd(view), None, now) for view in live]
        useful = sum(each.goodput * each.usd for each in money if each.goodput is not None)
        spent = sum(each.usd for each in money)
        return self._page(
            "overview.html",
            "Jobs",
            rows=rows,
            left_out=max(0, len(shown) - MAX_JOBS),
            findings=found[:MAX_SHOWN],
            more_findings=max(0, len(found) - MAX_SHOWN),
            live=len(live),
            training=sum(view.record.state in TRAINING for view in live),
            waiting=sum(waits(view) for view in live),
            nodes=fleet_bar(views),
            usd_per_hour=sum(map(usd_per_hour, views)),
            spent=spent,
            goodput=useful / spent if spent else None,
        )

    def _job_line(self, view: JobView, *, curved: bool) -> dict[str, Any]:
        now = self._source.now()
        row = job_row(view, self._about(view), now)
        curve = self._curve(view) if curved and not view.record.ended else None
        losses = [point.loss for point in curve.points if point.loss is not None] if curve else []
        return {
            **row,
            "tone": tone(view.record.state),
            "usd_per_hour": usd_per_hour(view),
            "spark": spark(losses[-60:]),
            "speed": speed(curve),
            "bar": fleet_bar([view]),
            "width": _width(row["nodes"]["training"], row["nodes"]["desired"]),
        }

    def _curve(self, view: JobView) -> Curve | None:
        """Return the curve; one that cannot be read is none: the page has everything else."""
        try:
            return self._source.curve(view.name)[1]
        except SpotsupError:
            return None

    def _about(self, view: JobView) -> str:
        record = view.record
        return f"{ENDED_AS[record.state]}: {record.reason}" if view.past else self._source.status().about(record.name)

    # -- one job -------------------------------------------------------------------------------------------

    def job(self, name: str, window: str = "") -> str:
        """Return the page of one job: timeline, curves, nodes, events, and the end of its logs. Raises
        NotFoundError."""
        source, now = self._source, self._source.now()
        view = source.job(name)
        curve, events = self._curve(view), list(source.events(name))
        length = window if window in WINDOWS_S else _fitting(view, now)
        picture = timeline(view, curve, events, span := window_of(view, now, WINDOWS_S[length]))
        detail = job_detail(view, self._about(view), now)
        cost = job_cost(view, self._usd(view), source.on_demand(view), now)
        return self._page(
            "job.html",
            view.name,
            job=detail,
            tone=tone(view.record.state),
            timeline=picture,
            colours=LEGEND,
            windows=list(WINDOWS_S),
            window=length,
            charts=charts(curve, span),
            cost=cost,
            purposes=PURPOSES,
            speed=speed(curve),
            pauses=list(reversed(curve.pauses[-12:])) if curve else [],
            causes=CAUSES,
            nodes=_current_nodes(view, now),
            gone=sum(node.state is NodeState.GONE for node in view.nodes.values()),
            waits=_waits(detail["ranks"]),
            kinds={str(state): kind for state, kind in KINDS.items()},
            events=event_lines(events),
            more_events=max(0, len(events) - MAX_EVENTS),
            tail=self._tail(name),
            limits={key: each for key, each in detail["limits"].items() if each["limit"] is not None},
        )

    def _tail(self, name: str) -> list[tuple[str, str]]:
        try:
            return self._lines(name, "", MAX_TAIL_LINES)
        except SpotsupError:
            return []

    def _lines(self, name: str, node: str, max_lines: int) -> list[tuple[str, str]]:
        return [(short(of_node), line) for of_node, line in self._source.lines(name, node, max_lines)]

    def logs(self, name: str, node: str = "") -> str:
        """Return what a job has printed last. Raises NotFoundError."""
        view = self._source.job(name)
        return self._page(
            "logs.html",
            f"Logs of {view.name}",
            job=view.name,
            node=node,
            nodes=[row["id"] for row in node_rows(view, self._source.now()) if row["state"] != NodeState.GONE],
            lines=self._lines(name, node, MAX_LINES),
            max_lines=MAX_LINES,
        )

    # -- the cluster ---------------------------------------------------------------------------------------

    def fleet(self) -> str:
        """Machines by state, and pools over the last day."""
        views, now = list(self._source.jobs()), self._source.now()
        found = regions(views, self._source.pool_days(), now)
        window = window_of_day(now)
        return self._page(
            "fleet.html",
            "Fleet",
            nodes=fleet_bar(views),
            colours=LEGEND,
            regions=found,
            ticks=list(ticks(window, 9)),
            usd_per_hour=sum(map(usd_per_hour, views)),
            held=sum(row.held for region in found for row in region.rows),
        )

    def queue(self) -> str:
        """Jobs that wait, in their order."""
        status = self._source.status()
        rows = queue_rows(self._source.jobs(), status.admissions, status.about, self._source.now())
        return self._page("queue.html", "Queue", rows=[{**row, "tone": tone(row["state"])} for row in rows])

    def money(self) -> str:
        """Return what is spent and saved."""
        source = self._source
        now = source.now()
        deleted = source.deleted(month_of(now))
        found = spending_of(list(source.jobs()), source.budgets, self._usd, source.on_demand, now, deleted)
        return self._page("money.html", "Money", money=found, purposes=PURPOSES)

    def login(self, problem: str = "") -> str:
        """Return the page where a token is shown. Says nothing about the cluster."""
        return self._jinja.get_template("login.html").render(problem=problem)

    def error(self, status: int, text: str) -> str:
        """Return what went wrong, in one sentence."""
        return self._page("error.html", "Not found" if status == 404 else "Error", code=status, text=text)


_ORDER = {
    JobState.RUNNING: 1,
    JobState.DEGRADED: 0,
    JobState.WAITING: 0,
    JobState.STARTING: 2,
    JobState.QUEUED: 3,
    JobState.PAUSED: 4,
}
_TONES = {
    "running": "good",
    "succeeded": "done",
    "degraded": "near",
    "waiting": "near",
    "starting": "busy",
    "queued": "calm",
    "paused": "calm",
    "cancelled": "calm",
    "failed": "bad",
}


def tone(state: str) -> str:
    """Return the colour of a job's state."""
    return _TONES.get(str(state), "calm")


def fleet_bar(views: Iterable[JobView]) -> list[dict[str, Any]]:
    """Return nodes by what they do: parts of one bar, in percent."""
    counts = Counter(
        kind for view in views for node in view.nodes.values() if (kind := KINDS.get(node.state)) is not None
    )
    total, left, found = sum(counts.values()), 0.0, []
    for kind in _NODE_ORDER:
        if counts[kind]:
            width = 100 * counts[kind] / total
            found.append({"kind": kind, "count": counts[kind], "left": round(left, 3), "width": round(width, 3)})
            left += width
    return found


def _width(part: int, whole: int) -> float:
    return round(100 * min(1.0, part / whole), 2) if whole else 0.0


def _fitting(view: JobView, now: float) -> str:
    """Return the window that is shown first: the whole job, or the last hours of a long one."""
    lasted_s = (view.record.ended_at or now) - view.record.submitted_at
    return "all" if lasted_s <= 6 * 3600 or view.record.ended else "6h" if lasted_s <= 7 * 86400 else "24h"


def window_of_day(now: float) -> Window:
    """Return the day that the heat map shows."""
    end = (int(now) // CELL_S + 1) * CELL_S
    return Window(end - DAY_S, end)


def _current_nodes(view: JobView, now: float) -> list[NodeRow]:
    """Return the current nodes. Those that do not train first: they are what one looks for."""
    found = [row for row in node_rows(view, now) if row["state"] != NodeState.GONE]
    return sorted(found, key=lambda row: row["state"] == NodeState.MEMBER and not row["notice_deadline"])


def _waits(ranks: Sequence[RankRow]) -> dict[str, int]:
    """Return, by node, for how many milliseconds of each step all others wait for its slowest rank; without what is
    noise."""
    slowest = sorted(ranks, key=lambda each: each["waited_s"])
    return {each["node"]: round(1000 * each["waited_s"]) for each in slowest if is_waited_for(each)}


def event_lines(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return the newest events first."""
    return [
        {
            "at": each.at,
            "kind": str(each.kind),
            "text": each.text,
            "node": each.node,
            "tone": each.kind.tone,
        }
        for each in reversed(events[-MAX_EVENTS:])
    ]
