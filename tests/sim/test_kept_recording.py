"""The recording that is made of what jobs held says "at least", and the command plays a job on it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from spotsup_simulator.replay.kept import MIN_HOURS, SLOT_S, recording_of, sentences
from spotsup_simulator.world import World
from spotsup_trainer.etcd import Put

from provisioners.base import Market, Offer, OfferQuery, UnreachableError
from supervisor.api.app import create_app
from supervisor.api.quote import Quotes
from supervisor.api.security.unix_socket import PEER
from supervisor.api.service import Service
from supervisor.cli.ctl import main
from supervisor.errors import CommandRefusedError, NotFoundError, SpotsupError, UsageError
from supervisor.pool_days import PoolDay, PoolName, Row, encode_day
from supervisor.runtime.pools import _day_of
from tests.sim.harness import empty_world
from tests.support.documents import blocks
from tests.unit.quoting import Stub

pytestmark = pytest.mark.long

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "simulate.md"
DAY = "2026-11-20"
NEXT = "2026-11-21"
A = PoolName("local", "r", "z-1a", "small", "spot")
B = A._replace(zone="z-1b")


def day(pool: PoolName, *rows: tuple[int, int | None, int, int], until: int = 0, usd: float | None = 0.5) -> PoolDay:
    return PoolDay(pool, tuple(Row(*row, usd) for row in rows), until or rows[-1][0])


def held(*records: tuple[str, PoolDay]) -> list[tuple[float, ...]]:
    """What the recording of these grants, per five minutes."""
    recording, _ = recording_of(records, {})
    assert recording.end_s == len(recording.capacity.rows) * SLOT_S
    return list(recording.capacity.rows)


# -- the recording -------------------------------------------------------------------------------------------


def test_a_zone_has_what_was_held_of_it_and_no_more() -> None:
    rows = held((DAY, day(A, (0, 4, 4, 0), (30, 3, 0, 1), (45, 4, 1, 0), until=89)))
    assert rows == [(4.0,)] * 6 + [(3.0,)] * 3 + [(4.0,)] * 9


def test_what_nobody_asked_for_is_left_out_and_what_one_zone_lacks_is_none() -> None:
    records = ((DAY, day(A, (0, 2, 2, 0), (60, 0, 0, 0))), (DAY, day(B, (30, 0, 0, 2), (90, 1, 1, 0), until=119)))
    assert held(*records) == [(2.0, 0.0)] * 12 + [(0.0, 1.0)] * 6
    _, basis = recording_of(records, {})
    assert (basis.hours, basis.stretches, basis.granted, basis.refused, basis.pools) == (1.5, 2, 3, 2, 2)
    assert basis.most == {"z-1a": 2, "z-1b": 1}


def test_a_refusal_says_for_a_quarter_of_an_hour_that_there_is_nothing() -> None:
    refusals = [(minute, 0, 0, 1) for minute in range(0, 60, 20)]
    assert held((DAY, day(A, *refusals, (60, 1, 1, 0), until=79))) == [(0.0,)] * 9 + [(1.0,)] * 4
    last = day(A, (0, 1, 1, 0), (60, 0, 0, 1))
    assert held((DAY, last)) == [(1.0,)] * 12 + [(0.0,)] * 3


def test_for_a_gap_nothing_is_known_and_nothing_after_what_was_watched() -> None:
    gap = day(A, (0, 4, 4, 0), (60, None, 0, 0), (120, 2, 0, 0), until=130)
    assert held((DAY, gap)) == [(4.0,)] * 12 + [(2.0,)] * 3
    _, basis = recording_of([(DAY, gap)], {})
    assert basis.stretches == 2


def test_days_follow_each_other_and_types_of_one_zone_add_up() -> None:
    large = A._replace(instance_type="large")
    records = (
        (DAY, day(A, (1380, 2, 2, 0), until=1440)),
        (NEXT, day(A, (0, 2, 0, 0), until=9)),
        (DAY, day(large, (1430, 1, 1, 0), until=1440, usd=0.7)),
    )
    assert held(*records) == [(2.0,)] * 10 + [(3.0,)] * 2 + [(2.0,)] * 2
    recording, basis = recording_of(records, {})
    assert recording.prices is not None
    assert {row[0] for row in recording.prices.rows} == {0.7}, "the dearer of its types"
    assert (basis.stretches, basis.first_day, basis.last_day, basis.pools) == (1, DAY, NEXT, 2)
    assert recording.drops == ((12 * SLOT_S,),)


def test_prices_are_those_of_the_time_else_those_of_now_else_unknown() -> None:
    rows = (Row(0, 1, 1, 0, None), Row(30, 1, 0, 0, 0.4), Row(60, 1, 0, 0, 0.6))
    recording, _ = recording_of([(DAY, PoolDay(A, rows, 89))], {})
    assert recording.prices is not None
    assert [row[0] for row in recording.prices.rows] == [0.4] * 12 + [0.6] * 6
    unpriced = [(DAY, day(A, (0, 1, 1, 0), until=89, usd=None))]
    listed, _ = recording_of(unpriced, {"z-1a": 0.9})
    assert listed.prices is not None
    assert listed.prices.at(0) == (0.9,)
    assert recording_of(unpriced, {})[0].prices is None


def test_too_little_is_refused_in_one_sentence() -> None:
    with pytest.raises(CommandRefusedError, match=r"^nothing is recorded of any pool that this job may use: [^.]*[.]"):
        recording_of([], {})
    with pytest.raises(CommandRefusedError, match=r"may use: 0\.5 h, with 2 requests; at least 1 h"):
        recording_of([(DAY, day(A, (0, 2, 2, 0), until=29))], {})
    with pytest.raises(CommandRefusedError, match=r"0\.0 h, with 0 requests"):
        recording_of([(DAY, PoolDay(A))], {})
    assert recording_of([(DAY, day(A, (0, 2, 2, 0), until=59))], {})[1].hours == MIN_HOURS


def test_people_are_told_what_it_was_made_from_and_what_it_does_not_say() -> None:
    _, basis = recording_of([(DAY, day(A, (0, 2, 2, 1), until=89))], {})
    made_of, at_least, more = sentences(basis, 4)
    assert made_of.endswith("1.5 h of 2026-11-20 (UTC), 3 requests (2 granted, 1 refused), 1 pool.")
    assert "at least 2" in at_least
    assert more == "No zone ever held more than 2 at once, and the job wants 4: whether there were more is unknown."
    assert len(sentences(basis, 2)) == 2
    _, parts = recording_of([(DAY, day(A, (0, 2, 2, 0), (60, None, 0, 0), (90, 1, 0, 0), until=99))], {})
    assert "in 2 parts without what was between them" in sentences(parts, 1)[0]


# -- the command ---------------------------------------------------------------------------------------------

JOB = "name: bert\nnodes: {min: 1, desired: 2, max: 2}\nplacement: {regions: [r]}\nrun: train.py\n"
OFFERS = [Offer("local", "r", zone, "small", Market.SPOT, 0.5) for zone in ("z-1a", "z-1b")]


class Daemon:
    """A daemon of a simulated world, as the command's client sees it."""

    leader, etcd_away_since = "", 0.0

    def __init__(self) -> None:
        self.world: World = empty_world()
        daemon = self.world.daemon
        self.answer: Sequence[Offer] | Exception = OFFERS
        quotes = Quotes({"local": Stub(self.offers)}, timeout_s=60.0, provider_s=55.0)
        service = Service(
            daemon.journal, daemon.leader, self.world.clock, ["local"], lambda *_: True, quotes.quote, hosted=["local"]
        )
        self.app = create_app(service, lambda: daemon.loop.status, self.world.clock, "0")

    def offers(self, _query: OfferQuery) -> Sequence[Offer]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def post(self, path: str, body: dict[str, Any]) -> Any:
        async def call() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(self.app, client=(PEER, 0)), base_url="http://x"
            ) as client:
                return await client.post(path, json=body, timeout=60.0)

        reply = asyncio.run(call())
        if reply.is_success:
            return reply.json()
        kinds: dict[int, type[SpotsupError]] = {2: UsageError, 4: NotFoundError, 5: CommandRefusedError}
        raise kinds.get(reply.json()["code"], SpotsupError)(reply.json()["error"])

    def close(self) -> None:
        """Nothing is open."""

    def keep(self, key: str, value: bytes, days_ago: int = 1) -> None:
        """Put a record into etcd."""
        journal = self.world.daemon.journal
        name, _ = _day_of(self.world.clock.now() - days_ago * 86400)
        journal._store.txn([], [Put(f"{journal.keys.root}pools/{name}/{key}", value)])

    def keep_day(self, found: PoolDay, days_ago: int = 1) -> None:
        self.keep(found.pool.key, encode_day(found), days_ago)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    found = Daemon()
    monkeypatch.setattr("spotsup.transport.Transport", lambda *_: found)
    return found


def planned(folder: Path, *options: str, job: str = JOB) -> Any:
    (folder / "train.py").write_text("")
    (folder / "job.yaml").write_text(job)
    return CliRunner().invoke(main, ["plan", str(folder / "job.yaml"), *options])


FULL = day(A, (0, 2, 2, 0), (300, 1, 0, 1), (420, 2, 1, 0), until=719)


def test_the_command_plays_the_job_and_says_from_what(daemon: Daemon, tmp_path: Path) -> None:
    daemon.keep_day(FULL)
    daemon.keep_day(day(B, (310, 0, 0, 2)))
    daemon.keep_day(day(A._replace(zone="elsewhere"), (0, 9, 9, 0), until=1440))
    shown = planned(tmp_path, "--simulate", "--baseline", "--work", "4")
    assert shown.exit_code == 0, shown.output
    assert shown.output.split()[:4] == ["spotsup", "rigid", "restart-all", "oracle"]
    assert "12.0 h of 1970-01-11 (UTC), 6 requests (3 granted, 3 refused), 2 pools." in shown.output
    exact = json.loads(planned(tmp_path, "--simulate", "-o", "json").output)
    (result,) = exact["results"]
    assert exact["recording"]["hours"] == result["hours"] == 12.0
    assert exact["recording"]["most"] == {"z-1a": 2, "z-1b": 0}
    assert 20 < result["useful_node_h"] < 22, "2 of 2 machines, but for two hours 1"
    assert result["usd"] == pytest.approx(0.5 * result["paid_node_h"])
    assert result["moves"] == 0
    last = planned(tmp_path, "--simulate", "--hours", "2")
    assert "Played are the last 2 h of them." in last.output
    whole = json.loads(planned(tmp_path, "--simulate", "--hours", "99", "-o", "json").output)
    assert whole["played_hours"] == 12.0


def test_the_document_shows_what_the_command_prints(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = (each.text for each in blocks(DOCUMENT) if each.file == "job.yaml")
    west_a, west_c = (
        PoolName("local", "us-west-2", zone, "p3.2xlarge", "spot") for zone in ("us-west-2a", "us-west-2c")
    )
    daemon.answer = [
        Offer("local", "us-west-2", pool.zone, "p3.2xlarge", Market.SPOT, 1.0) for pool in (west_a, west_c)
    ]
    taken = day(west_a, (480, 4, 4, 0), (600, 3, 0, 2), (640, 4, 1, 0), (840, 2, 0, 3), (850, 0, 0, 1), usd=0.918)
    daemon.keep_day(taken, 2)
    daemon.keep_day(day(west_c, (840, 0, 0, 1), (860, 4, 4, 0), (1080, 0, 0, 0), usd=0.905), 2)
    daemon.keep_day(day(west_c, (540, 2, 2, 2), (600, 3, 1, 0), until=960, usd=0.97), 1)
    (command,) = (each for block in blocks(DOCUMENT, "sh") for each in block.commands() if "spotsupctl" in each)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(job)
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(main, command.split()[1:])
    (printed,) = (block.text for block in blocks(DOCUMENT, "text") if "own jobs held" in block.text)
    assert [line[:18] for line in shown.output.splitlines()] == [line[:18] for line in printed.splitlines()]
    # What calls take is drawn; a change of the simulation draws otherwise.
    now, then = (re.findall(r"\d+\.\d+", text) for text in (shown.output, printed))
    assert [float(each) for each in now] == pytest.approx([float(each) for each in then], rel=0.1, abs=1.0)


def test_with_nothing_recorded_it_is_refused_with_one_sentence(daemon: Daemon, tmp_path: Path) -> None:
    for days_ago in (7, 30):
        daemon.keep_day(FULL, days_ago)
    shown = planned(tmp_path, "--simulate")
    assert shown.exit_code == 5
    assert shown.output.startswith("spotsupctl: nothing is recorded of any pool that this job may use")
    daemon.keep_day(day(A, (0, 2, 2, 0), until=9), 6)
    assert "0.2 h, with 2 requests" in planned(tmp_path, "--simulate").output


def test_broken_records_are_left_out_and_counted(daemon: Daemon, tmp_path: Path) -> None:
    daemon.keep_day(FULL)
    for days_ago, value in enumerate(
        [b"", b"\xff", b"[" * 20_000, b'{"rows": 7}', encode_day(day(B, (0, 9, 9, 0)))], 2
    ):
        daemon.keep(A.key, value, days_ago)
    daemon.keep("no/such/pool", b"{}")
    daemon.keep("", b"{}")
    shown = planned(tmp_path, "--simulate")
    assert shown.exit_code == 0, shown.output
    assert "5 records could not be read and are left out." in shown.output
    assert re.search(r"12\.0 h of .*, 4 requests", shown.output)
    assert json.loads(planned(tmp_path, "--simulate", "-o", "json").output)["recording"]["unreadable"] == 5


def test_what_cannot_be_played_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    daemon.keep_day(FULL)
    alone = planned(tmp_path, "--baseline")
    assert (alone.exit_code, "go with --simulate" in alone.output) == (2, True)
    region = planned(tmp_path, "--simulate", job=JOB.replace("{regions: [r]}", "{spread: region}"))
    assert (region.exit_code, "share one zone" in region.output) == (2, True), region.output
    daemon.answer = [Offer("local", "r", "z-1a", "small", Market.ON_DEMAND, 2.0)]
    bought = planned(tmp_path, "--simulate", job=f"{JOB}market: on-demand\n")
    assert (bought.exit_code, "asks for no spot machines" in bought.output) == (5, True), bought.output
    daemon.answer = UnreachableError("no route")
    away = planned(tmp_path, "--simulate")
    assert (away.exit_code, "no route" in away.output) == (1, True), away.output


def test_on_demand_machines_cost_what_their_offer_says(daemon: Daemon, tmp_path: Path) -> None:
    daemon.keep_day(FULL)
    daemon.answer = [*OFFERS, Offer("local", "r", "z-1a", "small", Market.ON_DEMAND, 2.0)]
    shown = planned(tmp_path, "--simulate", "-o", "json", job=f"{JOB}market: spot-then-on-demand\n")
    (result,) = json.loads(shown.output)["results"]
    assert result["usd_at_on_demand"] == pytest.approx(2.0 * result["useful_node_h"])
