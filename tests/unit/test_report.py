"""The pages of `spotsupctl report`: complete, safe against what programs print, and without a single request."""

from __future__ import annotations

import asyncio
import math
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import httpx
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.wire import Progress

from provisioners.base import Market, OfferQuery, UnreachableError
from supervisor.api.app import create_app
from supervisor.api.jobs.report import OnDemand, on_demand_prices, report_row
from supervisor.api.quote import Quotes
from supervisor.api.security.unix_socket import PEER
from supervisor.cli.ctl import main
from supervisor.cli.report_pages import CAUSES, html, markdown
from supervisor.curve import Cause, Curve, Point, Seen, begun, extended
from supervisor.features.billing.record import BillingRecord
from supervisor.model import JobState, NodeState
from supervisor.planner.world import JobView
from supervisor.plots import Band, Line, plot, ticks, time_unit
from tests.sim.harness import service, training_world
from tests.support.documents import blocks
from tests.unit.quoting import Stub, raising
from tests.unit.scene import NOW, OFFER, job, member, node, view
from tools.stack import ROOT

DOCUMENT = ROOT / "docs" / "report.md"
PRICES = OnDemand({("zone-a", "small"): 1.5})
HOSTILE = "<script>alert(1)</script> | `x` \n# y"
SUBMITTED = NOW - 5000


def trained(
    rounds: int, steps: int = 20, *, samples: int = 32, loss: float | None = 1.0, cause: Cause = "preempted"
) -> Curve:
    """The curve of a job with so many rounds, each of a step per second and node, and a pause of 4 s before each."""
    at, step, curve = SUBMITTED + 30.0, 0, None
    for number in range(1, rounds + 1):
        nodes = 1 + number % 2
        at += 4.0
        first = at
        for _ in range(steps):
            step += nodes
            point = Point(at, step, samples * step, step // 100, loss, nodes, 0.001 * step)
            found = Seen(point, number, first, cause)
            curve = begun(found) if curve is None else extended(curve, found, watched=True)
            at += 1.0
    assert curve is not None
    return curve


def shown(
    curve: Curve | None = None, sentence: str = "2 of 2 nodes train", prices: OnDemand = PRICES, **changes: Any
) -> dict[str, Any]:
    """The report of a job with two nodes."""
    progress = Progress(1, curve.newest.step, curve.newest.at, 0.0, loss=curve.newest.loss) if curve else None
    found = view(replace(job(), **changes), [member(1), member(2)], progress=progress)
    return report_row(found, sentence, curve, prices, max(NOW, curve.newest.at + 1 if curve else 0.0))


class Page(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            f"{tag} {name}" for name, _ in attrs if name in {"src", "href", "srcset", "action", "data", "onload"}
        ]

    def handle_data(self, data: str) -> None:
        self.text += data


# -- what is in them -----------------------------------------------------------------------------------------


def test_speeds_pauses_and_costs_are_those_of_the_curve() -> None:
    row = shown(trained(4, steps=25))
    one, two = row["speeds"]
    assert (one["nodes"], one["samples_per_s"], one["efficiency"]) == (1, 32.0, 1.0)
    assert (two["nodes"], two["samples_per_s"], two["efficiency"]) == (2, 64.0, 1.0)
    assert row["usd_per_epoch"] == 0.101, "of step 101, with which the first one was complete"
    text = markdown(row)
    assert re.search(r"^\| 2 \| 48s \| 96 \| 2 \| 64.0 \| 100% \|$", text, re.MULTILINE)
    assert "| preemption, with notice | 3 | 15.0 s |" in text
    assert "3 pauses, 15.0 s in all" in text
    assert "| cost per epoch | $0.1010 |" in text


def test_efficiency_is_relative_to_the_fewest_nodes_and_by_steps_where_no_samples_are_reported() -> None:
    slower = extended(
        trained(1, samples=0), Seen(Point(SUBMITTED + 100, 41, 0, 0, None, 4, 1.0), 2, SUBMITTED + 100), watched=True
    )
    slower = extended(slower, Seen(Point(SUBMITTED + 110, 81, 0, 0, None, 4, 1.0), 2, SUBMITTED + 100), watched=True)
    row = shown(slower)
    assert [(each["nodes"], each["steps_per_s"], each["efficiency"]) for each in row["speeds"]] == [
        (2, 2.0, 1.0),
        (4, 4.0, 1.0),
    ]
    assert row["speeds"][0]["samples_per_s"] is None
    assert "Steps per second" in html(row)


def test_what_on_demand_would_have_cost_follows_the_hours_and_says_what_it_does_not_know() -> None:
    row = shown(trained(3))
    hours = sum(each["hours"] for each in row["cost"]["node_list"])
    assert row["on_demand"]["usd"] == pytest.approx(1.5 * hours, abs=1e-3)
    assert row["on_demand"]["saved"] == pytest.approx(1 - 0.5 / 1.5, abs=1e-3)
    assert "67% saved" in markdown(row)
    unknown = shown(trained(3), prices=OnDemand({}))
    assert unknown["on_demand"]["usd"] is None
    assert "not known: no on-demand price is known for small" in markdown(unknown)
    assert "at on-demand prices" not in html(unknown)


def test_of_machines_that_are_no_longer_listed_the_share_is_estimated_and_said_to_be() -> None:
    row = shown(trained(3), billing=BillingRecord(1.0))
    kept = shown(trained(3))
    assert row["on_demand"]["usd"] == pytest.approx(kept["on_demand"]["usd"] + 3.0, abs=1e-3)
    assert row["on_demand"]["by_point"][-1] == pytest.approx(row["on_demand"]["usd"], abs=1e-3)
    assert "estimated for machines that are no longer listed" in markdown(row)


def test_the_price_is_that_of_the_zone_or_of_the_region() -> None:
    asked: list[OfferQuery] = []

    def answer(query: OfferQuery) -> list[Any]:
        asked.append(query)
        return [replace(OFFER, zone="zone-b", market=Market.ON_DEMAND, usd_per_hour=2.0)]

    quotes = Quotes({"local": Stub(answer)})
    found = on_demand_prices(quotes, view(job(), [member(1)]))
    assert [(each.market, each.instance_types) for each in asked] == [(Market.ON_DEMAND, ("small",))]
    assert found.price(OFFER) == 2.0
    assert found.price(replace(OFFER, market=Market.ON_DEMAND, usd_per_hour=3.0)) == 3.0
    assert found.price(replace(OFFER, region="elsewhere", zone="far")) is None
    away = Quotes({"local": Stub(raising(UnreachableError("no route")))})
    assert "no route" in on_demand_prices(away, view(job(), [member(1)])).problem
    none = on_demand_prices(quotes, view(job(), [node(1, NodeState.REQUESTED)]))
    assert none.problem == "it has had no machine"


# -- every page ----------------------------------------------------------------------------------------------

REPORTS = {
    "no steps": shown(),
    "no nodes": report_row(view(job(state=JobState.QUEUED), []), "queued", None, PRICES, NOW),
    "one point": shown(trained(1, steps=1)),
    "no loss": shown(trained(2, loss=None)),
    "500 pauses": shown(trained(501, steps=3)),
    "ended": shown(trained(3), state=JobState.SUCCEEDED, ended_at=NOW - 100),
    "hostile": shown(trained(3, loss=-1e308), sentence=HOSTILE),
}


@pytest.mark.parametrize("name", REPORTS)
def test_the_html_is_whole_and_loads_nothing(name: str) -> None:
    text = html(REPORTS[name])
    page = Page(text)
    assert page.loads == []
    assert "script" not in page.tags
    assert page.tags.count("svg") == 4
    assert not re.search(r"https?:|url\(|@import|nan|\binf\b", text)
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        root = ET.fromstring(svg)  # noqa: S314 - our own
        for each in root.iter():
            for key in ("x", "y", "cx", "cy", "width", "height"):
                assert math.isfinite(float(each.get(key, 0)))


@pytest.mark.parametrize("name", REPORTS)
def test_every_row_of_the_markdown_has_the_cells_of_its_table(name: str) -> None:
    table: list[int] = []
    for line in [*markdown(REPORTS[name]).splitlines(), ""]:
        if line.startswith("|"):
            table.append(len(re.findall(r"(?<!\\)\|", line)))
        elif table:
            assert len(set(table)) == 1
            table = []
    assert "None" not in markdown(REPORTS[name])


def test_plots_never_go_back_in_time_where_steps_were_lost_and_made_again() -> None:
    curve = trained(1, steps=40)
    lost = Seen(Point(SUBMITTED + 90, 42, 32 * 42, 0, 2.0, 2, 0.1), 2, SUBMITTED + 88, "lost")
    page = html(shown(extended(curve, lost, watched=True)))
    lines = re.findall(r'<polyline class="a" points="([^"]+)"', page)
    assert len(lines) == 4
    for line in lines:
        places = [float(each.partition(",")[0]) for each in line.split()]
        assert places == sorted(places)


def test_what_a_program_prints_is_text_in_both() -> None:
    assert "<script>" not in html(REPORTS["hostile"])
    assert HOSTILE.partition("\n")[0] in Page(html(REPORTS["hostile"])).text
    assert "\n# y" not in markdown(REPORTS["hostile"])


def test_of_500_pauses_all_count_and_the_newest_are_listed() -> None:
    text = markdown(REPORTS["500 pauses"])
    assert "500 pauses" in text
    assert text.count("| preemption, with notice |") == 1 + 20
    assert html(REPORTS["500 pauses"]).count('class="pause"') <= 4 * 128
    assert len(html(REPORTS["500 pauses"])) < 400_000


def test_every_cause_has_its_words() -> None:
    assert set(CAUSES) == set(Cause.__args__)  # type: ignore[attr-defined]


# -- plots ---------------------------------------------------------------------------------------------------


@given(st.floats(-1e12, 1e12), st.floats(1e-6, 1e12))
def test_marks_of_an_axis_are_few_and_enclose_it(low: float, span: float) -> None:
    marks = ticks(low, low + span)
    assert 2 <= len(marks) <= 9
    assert marks[0] <= low + 1e-6 * max(abs(low), span)
    assert marks[-1] >= low + span - 1e-6 * max(abs(low), span)


def test_units_of_time_and_whole_numbers() -> None:
    assert [time_unit(each)[1] for each in (0, 90, 130, 7000, 7300, 200_000)] == ["s", "s", "min", "min", "h", "d"]
    assert ticks(0, 3, min_step=1.0) == [0.0, 1.0, 2.0, 3.0]


def test_a_plot_without_values_says_so_and_one_of_a_single_moment_is_drawn() -> None:
    assert "no values yet" in plot("t", [Line("a", [])], [Band(0, 1, "b")], 10)
    assert "<circle" in plot("t", [Line("a", [(0.0, 5.0)])], [], 0)


# -- the command ---------------------------------------------------------------------------------------------


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's daemon is one of a simulated world."""
    world = training_world()
    app = create_app(service(world), lambda: world.daemon.loop.status, world.clock, "0", prices=lambda _: PRICES)

    def get(path: str, **_: Any) -> Any:
        async def call() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app, client=(PEER, 0)), base_url="http://spotsupd"
            ) as client:
                return await client.get(path)

        reply = asyncio.run(call())
        assert reply.is_success, reply.text
        return reply.json()

    client = SimpleNamespace(get=get, close=lambda: None, leader="", etcd_away_since=0.0)
    monkeypatch.setattr("spotsup.transport.Transport", lambda *_: client)


@pytest.mark.usefixtures("answering")
def test_the_command_prints_writes_and_refuses(tmp_path: Path) -> None:
    run = CliRunner().invoke
    assert run(main, ["report", "job"]).output.startswith("# job\n")
    assert '"on_demand"' in run(main, ["report", "job", "-o", "json"]).output
    for name, begins in (("report.md", "# job"), ("report.html", "<!doctype html>")):
        done = run(main, ["report", "job", "-o", str(tmp_path / name)])
        assert done.output == f"wrote {tmp_path / name}\n"
        assert (tmp_path / name).read_text().startswith(begins)
    assert run(main, ["report", "job", "-o", "report.pdf"]).exit_code == 2
    nowhere = run(main, ["report", "job", "-o", str(tmp_path / "no" / "report.md")])
    assert nowhere.exit_code == 2
    assert "cannot write" in nowhere.output


@pytest.mark.usefixtures("answering")
def test_the_commands_of_the_document_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for each in (command for block in blocks(DOCUMENT, "sh") for command in block.commands()):
        program, *arguments = shlex.split(each.replace("chars", "job"))
        assert program == "spotsupctl"
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "report.html"}


def test_the_document_has_all_causes() -> None:
    table = DOCUMENT.read_text().split("| cause | when |", 1)[1].split("\n\n", 1)[0]
    assert set(re.findall(r"^\| ([^|]+) \| ", table, re.MULTILINE)) == set(CAUSES.values())


def test_a_job_view_of_an_earlier_run_is_reported_under_its_own_name() -> None:
    found: JobView = replace(view(job(state=JobState.SUCCEEDED, ended_at=NOW), []), past=True)
    assert markdown(report_row(found, "", None, PRICES, NOW)).startswith("# job.1")
