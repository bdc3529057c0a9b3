"""The daemon's planner on recorded markets: it learns by asking alone, and what it did adds up."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from spotsup_simulator.clock import START
from spotsup_simulator.replay import compare, oracle
from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.recording import Recording, Series
from spotsup_simulator.replay.run import Replay, run_together
from spotsup_simulator.replay.schedule import Entry
from spotsup_simulator.replay.world import STEADY_S, RecordedWorld

from supervisor.budget import Budgets
from supervisor.cli.daemon import main
from supervisor.errors import UsageError
from supervisor.market.admission import Cap, QueueRules
from supervisor.planner.actions import Outcome
from supervisor.planner.world import Rules
from supervisor.spec import JobSpec, parse_spec
from tests.support.documents import blocks
from tests.unit.test_replay_references import market

pytestmark = pytest.mark.long

COSTS = Costs(spot_usd_per_hour=1.0)
EVERY_S = 600.0


def job(low: int, desired: int, **more: Any) -> JobSpec:
    nodes = {"min": low, "desired": desired, "max": desired}
    return parse_spec({"name": "job", "nodes": nodes, "run": "train.py", "checkpoints": "none"} | more)


def replay(recording: Recording, low: int, desired: int, seed: int = 1, costs: Costs = COSTS, **more: Any) -> Replay:
    work = more.pop("work_node_h", None)
    return compare.replayed(recording, job(low, desired, **more), costs, seed, work)


def test_a_market_with_enough_costs_the_first_arrival_and_the_checkpoints() -> None:
    played = replay(market((3,), interval_s=7200.0), 2, 3)
    found = played.run()
    assert found.useful_node_h == pytest.approx((6 - 3 * 120 / 3600) * 300 / 302, abs=0.05)
    assert (found.pauses, found.requests, found.refusals, found.lost_node_h) == (0, 3, 0, 0)
    assert found.usd == pytest.approx(6.0, abs=0.01)


def test_a_machine_is_taken_when_the_recording_says_so_and_announced_before() -> None:
    played = replay(market((3,), (2,), (2,), interval_s=EVERY_S), 2, 3)
    found = played.run()
    (taken,) = (bought.machine for bought in played.world.recorded.bought if bought.machine.noticed_at is not None)
    drop = played.world.started_at + EVERY_S
    assert (taken.noticed_at, taken.instance.preempt_at) == (drop - 120.0, drop)
    assert taken.ended_at is not None
    assert drop - 20.0 < taken.ended_at <= drop, "the node leaves its round a little earlier, and is given back"
    assert [nodes for _, nodes in played.rounds] == [3, 2]
    assert (found.lost_node_h, found.refusals > 0) == (0, True)


def test_a_loss_may_be_at_any_fraction_of_a_second() -> None:
    """Seconds of the recording, counted from a clock's begin, are rounded."""
    interval_s = 700.0 + 4e-11
    assert (START + interval_s) - START < interval_s
    found = replay(market((2,), (1,), (2,), (0,), interval_s=interval_s), 1, 2, costs=Costs(notice_s=0.0)).run()
    assert found.pauses >= 1


def test_what_is_granted_shortly_before_a_loss_is_announced_at_once() -> None:
    played = replay(market((0,), (1,), (0,), interval_s=300.0), 1, 1, costs=Costs(notice_s=1e9, spot_usd_per_hour=1.0))
    played.run()
    assert played.world.recorded.bought
    for bought in played.world.recorded.bought:
        assert bought.machine.noticed_at == bought.since
        assert bought.machine.instance.preempt_at == played.world.started_at + EVERY_S


def test_two_markets_that_differ_later_are_played_alike_until_then() -> None:
    """Nothing of the future reaches the planner, nor when a zone has something again without a request."""
    same = [(2, 0), (1, 0), (0, 2), (0, 0)]
    one = replay(market(*same, (4, 4), interval_s=EVERY_S), 1, 2)
    other = replay(market(*same, (0, 1), interval_s=EVERY_S), 1, 2)
    logs = []
    for played in (one, other):
        played.run()
        until = len(same) * EVERY_S - COSTS.notice_s
        logs.append([line for line in played.world.log if float(line.split(maxsplit=1)[0]) < until])
    assert logs[0] == logs[1]
    assert len(logs[0]) > 20


def test_the_same_seed_gives_the_same_result_to_the_last_digit() -> None:
    recording = market((4, 2), (2, 4), (1, 1), (4, 0), interval_s=EVERY_S)
    first, again = (asdict(replay(recording, 1, 3, seed=5).run()) for _ in range(2))
    assert first == again


class Keeping(RecordedWorld):
    records_kept = Rules().gone_kept


def test_records_that_are_not_kept_change_no_result() -> None:
    """Of machines that are gone, and events: to the last digit."""
    rows = [(4, 2), (2, 4), (1, 1), (4, 0), (0, 3), (3, 3)] * 4
    found = []
    for make_world in (RecordedWorld, Keeping):
        played = replay(market(*rows, interval_s=EVERY_S), 1, 3, work_node_h=6.0)
        found.append((asdict(run_together([played], make_world=make_world)[0]), played.rounds))
        assert len(played.world.recorded.bought) > RecordedWorld.records_kept
    assert found[0] == found[1]


class Thorough(Keeping):
    """As the daemon of every other simulation, which leaves out nothing."""

    faultless = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given, changed={"leftovers_s": Rules().leftovers_s, "note_s": Rules().note_s})
        self.min_tick_s = 0.02
        self.nodes.progress_every_s = 10.0

    def tick_at(self, ticked_at: float, idle_ticks: int) -> float:
        return ticked_at + 1.0

    def is_news(self, outcome: Outcome) -> bool:
        return True


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_what_a_world_without_faults_leaves_out_hardly_changes_its_result() -> None:
    """Looks at nothing, steps of the one leader, listings, sweeps, records of machines that are gone. What a look sees
    a second later may be another round; no more."""
    rows = [(4, 2), (2, 4), (1, 1), (4, 0), (0, 3), (3, 3)] * 4
    found, ticks = [], []
    for make_world in (RecordedWorld, Thorough):
        played = replay(market(*rows, interval_s=EVERY_S), 1, 3)
        found.append(run_together([played], make_world=make_world)[0])
        ticks.append(played.world.ticks)
        assert len(played.world.recorded.bought) > RecordedWorld.records_kept
    short, thorough = found
    assert 15 * ticks[0] < ticks[1]
    assert short.useful_node_h == pytest.approx(thorough.useful_node_h, rel=0.02)
    assert short.paid_node_h == pytest.approx(thorough.paid_node_h, rel=0.02)
    assert short.waited_h == pytest.approx(thorough.waited_h, abs=0.05)
    assert short.moves == thorough.moves
    assert abs(short.pauses - thorough.pauses) <= 4
    assert abs(short.requests - thorough.requests) <= 6


def test_a_zone_is_asked_again_as_soon_as_its_refusal_is_not_believed_any_more() -> None:
    """As a daemon does that looks each second: at most a look, a call, and a look at its answer later."""
    played = replay(market((0,), interval_s=3600.0), 1, 1)
    played.run()
    asked = played.world.recorded.refused_at["job"]
    assert len(asked) > 20
    assert max(after - before for before, after in pairwise(asked)) <= Rules().gang.retry_s + 3.0


def test_while_all_nodes_train_and_nothing_happens_there_is_little_to_look_at() -> None:
    played = replay(market((2,), interval_s=12 * 3600.0), 1, 2)
    played.run()
    looks = 12 * 3600.0 / STEADY_S
    assert played.world.ticks <= 8 * looks, "a look for each message of a node and for each answer of its cloud"


def test_a_program_ends_with_its_work_and_its_machines_with_it() -> None:
    played = replay(market((2,), interval_s=4 * 3600.0), 1, 2, work_node_h=3.0)
    found = played.run()
    assert found.finished
    assert found.useful_node_h == pytest.approx(3.0, abs=0.1)
    assert found.hours < 1.8
    assert all(bought.machine.ended_at is not None for bought in played.world.recorded.bought)


def test_the_daemon_is_never_better_than_the_oracle_and_close_to_it_where_nothing_happens() -> None:
    recording = market((2, 0), (2, 2), (0, 2), (0, 2), interval_s=1800.0)
    found = replay(recording, 1, 2).run()
    best = oracle.best(recording, 1, 2, COSTS, 100.0)
    assert 0.9 * best.useful_node_h < found.useful_node_h <= best.useful_node_h


def test_jobs_that_no_recording_can_play_are_refused() -> None:
    with pytest.raises(UsageError, match="only training jobs whose nodes share one zone"):
        replay(market((1,)), 1, 1, placement={"spread": "region"})


# -- several jobs -----------------------------------------------------------------------------------------


def jobs(*entries: tuple[str, int, float, float | None]) -> list[tuple[JobSpec, Entry]]:
    """Name, nodes, hours, work."""
    return [
        (job(1, nodes, name=name), Entry(f"{name}.yaml", hours, work_node_h))
        for name, nodes, hours, work_node_h in entries
    ]


def test_jobs_share_what_a_zone_has_and_each_begins_at_its_time() -> None:
    recording = market((3,), interval_s=6 * 3600.0)
    played, (total,) = compare.together(recording, jobs(("one", 2, 0.0, 2.0), ("two", 2, 0.5, 2.0)), COSTS, 1)
    one, two = (each.part() for each in played)
    assert (one.submitted_h, two.submitted_h) == (0.0, 0.5)
    assert one.result.finished
    assert two.result.finished
    assert one.result.useful_node_h == pytest.approx(2.0, abs=0.1)
    assert two.result.useful_node_h == pytest.approx(2.0, abs=0.1), "nothing is counted after its end"
    # The second has one machine while the first has two, and two once it has ended.
    assert one.result.hours == pytest.approx(1.05, abs=0.1)
    assert two.ended_h == pytest.approx(1.9, abs=0.15)
    assert two.result.refusals > 0
    assert total.makespan_h == two.ended_h
    assert total.requests == one.result.requests + two.result.requests
    assert total.usd == pytest.approx(total.paid_node_h)
    assert total.paid_node_h < 1.3 * total.useful_node_h


def test_one_after_another_takes_longer_and_costs_no_more() -> None:
    recording = market((3,), interval_s=6 * 3600.0)
    entries = jobs(("one", 2, 0.0, 2.0), ("two", 1, 0.0, 1.0))
    _, (together, in_turn) = compare.together(recording, entries, COSTS, 1, in_turn=True)
    assert (together.policy, in_turn.policy) == ("spotsup", "one after another")
    assert together.makespan_h is not None
    assert in_turn.makespan_h is not None
    assert together.makespan_h == pytest.approx(1.1, abs=0.1)
    assert in_turn.makespan_h == pytest.approx(2.1, abs=0.2)
    assert in_turn.first_step_h is not None
    assert in_turn.first_step_h > 1.0, "it counts from when it could have been submitted"


def test_one_job_alone_is_played_the_same_way_as_among_others_that_come_after_it() -> None:
    recording = market((4, 2), (2, 4), (1, 1), (4, 0), interval_s=EVERY_S)
    alone = replay(recording, 1, 3).run()
    played, _ = compare.together(recording, jobs(("job", 3, 0.0, None), ("late", 1, 9.0, None)), COSTS, 1)
    first, late = (each.part() for each in played)
    assert asdict(first.result) == asdict(alone)
    assert (late.first_step_h, late.result.requests, late.result.hours) == (None, 0, 0.0)


def test_jobs_of_a_user_share_the_limits_and_budgets_of_the_operator() -> None:
    recording = market((4,), interval_s=6 * 3600.0)
    one, two = (job(2, 2, name=name) for name in ("one", "two"))
    of_ann = [(one, Entry("one.yaml", 0.0, 2.0, "ann")), (two, Entry("two.yaml", 0.0, 2.0, "ann"))]
    of_both = [of_ann[0], (two, Entry("two.yaml", 0.0, 2.0, "bob"))]
    queue = QueueRules(user=Cap(nodes=2))
    for entries, waits in ((of_ann, True), (of_both, False)):
        played, _ = compare.together(recording, entries, COSTS, 1, queue=queue)
        first_h = [played[number].part().first_step_h or 9.0 for number in (0, 1)]
        assert (max(first_h) > 1.0) is waits, "one user has room for one of them at a time"
    budgets = Budgets(users={"ann": 1.0})
    played, _ = compare.together(recording, [of_ann[0]], COSTS, 1, budgets=budgets)
    found = played[0].result()
    assert not found.finished
    assert found.usd == pytest.approx(1.0, abs=0.2), "it is paused once the budget is spent"


def test_jobs_that_cannot_share_a_world_are_refused() -> None:
    with pytest.raises(UsageError, match="two jobs are named one: each needs a name of its own"):
        compare.together(market((1,)), jobs(("one", 1, 0.0, None), ("one", 1, 0.0, None)), COSTS, 1)
    other = job(1, 1, name="other", placement={"cloud": "aws"})
    with pytest.raises(UsageError, match="the jobs name the clouds aws, local: one recording is of one cloud"):
        compare.together(market((1,)), [*jobs(("one", 1, 0.0, None)), (other, Entry("other.yaml", 0.0))], COSTS, 1)


# -- the document and the command -------------------------------------------------------------------------


def test_the_document_shows_what_its_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = Path(__file__).resolve().parents[2] / "docs" / "simulate.md"
    for each in blocks(document):
        if each.file:
            (tmp_path / each.file).parent.mkdir(exist_ok=True)
            (tmp_path / each.file).write_text(each.text)
    monkeypatch.chdir(tmp_path)
    commands = [command for each in blocks(document, "sh") for command in each.commands()]
    texts = [each.text for each in blocks(document, "text")]
    played = [pair for pair in zip(commands, texts, strict=True) if pair[0].startswith("spotsupd ")]
    assert len(played) == 2, "the other one is spotsupctl's: test_kept_recording.py"
    for command, printed in played:
        shown = CliRunner().invoke(main, command.split()[1:])
        assert [line[:18] for line in shown.output.splitlines()] == [line[:18] for line in printed.splitlines()]
        # What calls take is drawn; a change of the simulation draws otherwise.
        now, then = (re.findall(r"\d+\.?\d*", text) for text in (shown.output, printed))
        assert [float(each) for each in now] == pytest.approx([float(each) for each in then], rel=0.1, abs=1.0)


def simulate(folder: Path, *options: str) -> Any:
    (folder / "market.csv").write_text("seconds,z-1a,z-1b\n0,2,0\n900,1,2\n1800,0,2\n2700,2,2\n")
    (folder / "job.yaml").write_text("name: job\nnodes: {min: 1, desired: 2, max: 2}\nrun: train.py\n")
    arguments = ["simulate", str(folder / "market.csv"), "--job", str(folder / "job.yaml"), *options]
    return CliRunner().invoke(main, arguments)


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    shown = simulate(tmp_path, "--baseline", "--on-demand-usd", "3", "--spot-usd", "1")
    assert shown.exit_code == 0, shown.output
    assert shown.output.split()[:4] == ["spotsup", "rigid", "restart-all", "oracle"]
    exact = simulate(tmp_path, "-o", "json", "--hours", "0.5")
    (result,) = json.loads(exact.output)["results"]
    assert (result["policy"], result["hours"], result["usd"]) == ("spotsup", 0.5, None)


def test_limits_of_a_folder_of_jobs_are_those_of_a_configuration(tmp_path: Path) -> None:
    folder, limits = tmp_path / "jobs", tmp_path / "spotsupd.toml"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(f"name: {name}\nnodes: 1\nrun: train.py\n")
    (folder / "schedule.csv").write_text("job,hours,work,owner\none.yaml,0,0.5,ann\ntwo.yaml,0,0.5,ann\n")
    limits.write_text("[queue.user]\nnodes = 1\n")
    (tmp_path / "market.csv").write_text("seconds,z-1a\n0,2\n7200,2\n")
    command = ["simulate", str(tmp_path / "market.csv"), "--jobs", str(folder), "-o", "json"]
    for options, together in (([], True), (["--config", str(limits)], False)):
        shown = CliRunner().invoke(main, [*command, *options])
        assert shown.exit_code == 0, shown.output
        first_h = [each["first_step_h"] for each in json.loads(shown.output)["jobs"]]
        assert (max(first_h) < 0.2) is together
    wrong = simulate(tmp_path, "--config", str(limits))
    assert (wrong.exit_code, "it goes with --jobs FOLDER" in wrong.output) == (2, True)


def test_the_command_plays_a_folder_of_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(f"name: {name}\nnodes: {{min: 1, desired: 1, max: 1}}\nrun: train.py\n")
    (tmp_path / "market.csv").write_text("seconds,z-1a\n0,2\n3600,2\n")

    def shown(*options: str) -> Any:
        return CliRunner().invoke(main, ["simulate", str(tmp_path / "market.csv"), "--jobs", str(folder), *options])

    printed = shown("--work", "0.5", "--baseline", "--every", "0.25")
    assert printed.exit_code == 0, printed.output
    assert [line.split()[0] for line in printed.output.splitlines()] == ["job", "one", "two", "all:", "all:"]
    exact = json.loads(shown("-o", "json", "--hours", "0.5").output)
    assert [(each["job"], each["result"]["finished"]) for each in exact["jobs"]] == [("one", False), ("two", False)]
    assert exact["totals"][0]["jobs"] == 2
    for options, sentence in (
        (("--baseline",), "--baseline plays the jobs one after another: give each its work"),
        (("--job", "job.yaml"), "give one of --job JOB.yaml and --jobs FOLDER"),
    ):
        wrong = shown(*options)
        assert (wrong.exit_code, sentence in wrong.output) == (2, True), wrong.output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--start", "5"), "market has 1.0 h: nothing is left from 5 h on"),
        (("--prices", "none.csv"), "cannot read none.csv: No such file or directory"),
        (("--plot", "picture.png"), "there is no option --plot any more; `-o json` has the numbers"),
        (("--boot", "-1"), "-1.0 is not in the range x>=0.0"),
    ],
)
def test_wrong_usage_is_one_sentence(options: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    shown = simulate(tmp_path, *options)
    assert shown.exit_code == 2
    assert sentence in shown.output
    assert "Traceback" not in shown.output


def test_a_cap_keeps_a_replayed_job_from_hours_that_cost_more() -> None:
    recording = market((1,), (1,), (1,), (1,), interval_s=3600.0)
    prices = Series((0.0, 3600.0, 7200.0), ((1.0,), (3.0,), (1.0,)))
    recording = replace(recording, prices=prices)
    free = replay(recording, 1, 1).run()
    played = replay(recording, 1, 1, limits={"usd_per_node_hour": 2.0})
    capped = played.run()
    assert free.usd == pytest.approx(6.0, abs=0.1)
    assert capped.usd == pytest.approx(3.0, abs=0.1)
    assert 2.5 < capped.useful_node_h < 3.0
    (taken,) = (bought.machine for bought in played.world.recorded.bought if bought.machine.noticed_at is not None)
    assert taken.instance.preempt_at == pytest.approx(played.world.started_at + 3720.0, abs=121.0)
