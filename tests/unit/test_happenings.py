"""`spotsupctl events JOB` tells a story: a line for each happening, and nothing that happened is missing from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from supervisor.cli import show
from supervisor.cli.happenings import BULK_S, FOLD_S, Line, story, totals
from supervisor.events import EventKind
from tests.unit.test_show import printed

__all__ = ["printed"]
PLACE = {"zone": "us-east-1a", "instance_type": "p3.2xlarge"}


class Job:
    """Events as the daemon writes them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, at: float, kind: str, text: str = "", node: int = 0, **data: float | str) -> Job:
        name = f"job-abcde-{node}" if node else None
        number = len(self.events)
        self.events.append({"id": f"j-{number}", "at": at, "kind": kind, "text": text, "node": name, "data": data})
        return self

    def begins(self) -> Job:
        self.add(0.0, "submitted", "ann submitted job: 3 nodes")
        for node in (1, 2, 3):
            self.add(0.5, "launch-requested", f"requested {node}", node, **PLACE)
        return self.round(20.0, 1, 3)

    def round(self, at: float, number: int, nodes: int) -> Job:
        return self.add(at, "round", f"round {number} formed by {nodes} nodes: first round", round=number, nodes=nodes)

    def notice(self, at: float, node: int, ahead_s: float = 30.0) -> Job:
        return self.add(at, "notice", f"node {node}", node, deadline=at + ahead_s, seen_at=at)

    def lost(self, at: float, node: int) -> Job:
        return self.add(at, "node-lost", f"lost node {node}: i-0{node}ab was preempted", node)

    def replaced(self, at: float, node: int, by: int, **seen: float) -> Job:
        text = f"requested {by} in place of {node}"
        return self.add(at, "replacement-requested", text, by, replaces=f"job-abcde-{node}", **PLACE, **seen)

    def joined(self, at: float, node: int, by: int) -> Job:
        return self.add(at, "replacement-joined", f"{by} joined", by, replaces=f"job-abcde-{node}")

    def paused(self, at: float, number: int, pause_s: float, again: int) -> Job:
        data: Mapping[str, float | str] = {"round": number, "pause_s": pause_s, "steps_again": again, "usd": 0.002}
        return self.add(at, "training-paused", f"training paused for {pause_s} s", 1, **data)

    def lines(self) -> list[Line]:
        return story(self.events)


def test_a_start_is_one_line_with_its_machines_and_its_first_round() -> None:
    assert Job().begins().lines() == [
        Line(
            0.0,
            "submitted",
            "ann submitted job: 3 nodes; 3 nodes requested in us-east-1a (p3.2xlarge); round 1, 3 nodes, after 20 s",
        )
    ]


def test_a_notice_is_one_line_up_to_the_pause_of_its_replacement() -> None:
    job = Job().begins().notice(100.0, 2).replaced(100.02, 2, 4, seen_at=100.0)
    job.joined(124.0, 2, 4).round(124.0, 2, 3).paused(125.0, 2, 0.31, 0)
    _, line = job.lines()
    assert line.text == (
        "n2 gets a preemption notice, 30 s ahead; 1 replacement requested in us-east-1a (p3.2xlarge) after 0.02 s; "
        "n4 in place after 24 s; round 2, 3 nodes, after 24 s; training paused 0.31 s; no step lost"
    )


def test_nodes_that_are_lost_together_are_one_line_with_all_that_it_cost() -> None:
    job = Job().begins().lost(100.0, 1).lost(100.4, 2).lost(100.0 + BULK_S, 3)
    for node in (1, 2, 3):
        job.replaced(161.0, node, node + 3)
        job.add(162.0, "launch-refused", "…", node + 3, zone="us-east-1a", why="no capacity")
    for node in (1, 2, 3):
        job.replaced(200.0, node, node + 6)
    job.joined(300.0, 1, 7).joined(300.0, 2, 8).joined(300.0, 3, 9).round(300.0, 2, 3).paused(301.0, 2, 199.0, 12)
    _, line = job.lines()
    assert (line.at, line.kind) == (100.0, "node-lost")
    assert line.text == (
        "3 nodes (n1, n2, n3) lost without notice: was preempted; 6 replacements requested in us-east-1a (p3.2xlarge) "
        "after 61 s; us-east-1a refused 3: no capacity; 3 nodes (n7, n8, n9) in place after 3m20s; "
        "round 2, 3 nodes, after 3m20s; training paused 3m19s; 12 steps made again"
    ).replace("61 s", "1m01s")


def test_what_is_lost_later_is_another_happening_and_each_has_its_own_replacement() -> None:
    job = Job().begins().notice(100.0, 1).replaced(100.0, 1, 4, seen_at=100.0)
    job.notice(100.0 + BULK_S + 1, 2).replaced(161.5, 2, 5, seen_at=161.0)
    job.joined(170.0, 1, 4).joined(180.0, 2, 5)
    _, first, second = job.lines()
    assert first.text.endswith("at once; n4 in place after 1m10s")
    assert second.text.endswith("after 0.50 s; n5 in place after 19 s")


def test_of_very_many_nodes_a_few_are_named() -> None:
    job = Job().begins()
    for node in range(10, 74):
        job.lost(100.0, node)
    assert job.lines()[-1].text == "64 nodes (n10, n11, n12, n13 and 60 more) lost without notice: was preempted"


def test_a_node_that_goes_before_its_notice_is_over_is_still_one_happening() -> None:
    job = Job().begins().notice(100.0, 2, 120.0).lost(100.0 + BULK_S + 40, 2)
    assert [line.text for line in job.lines()[1:]] == ["n2 gets a preemption notice, 2m00s ahead"]


def test_what_is_said_again_is_counted_and_what_a_user_should_see_is_not() -> None:
    job = Job()
    for at in (10.0, 400.0, 900.0):
        job.add(at, "move-given-up", f"job does not move: {at} are needed")
    job.add(901.0, "limit-near", "50 % used").add(902.0, "limit-near", "80 % used")
    texts = [line.text for line in job.lines()]
    assert texts == ["job does not move: 900.0 are needed (3 times within 14m50s)", "50 % used", "80 % used"]


def test_rounds_that_come_much_later_are_lines_of_their_own() -> None:
    job = Job().begins().round(20.0 + FOLD_S + 1, 2, 3)
    assert [line.text for line in job.lines()[1:]] == ["round 2 formed by 3 nodes: first round"]
    ended = Job().begins().add(30.0, "paused", "it is paused").round(31.0, 2, 3)
    assert len(ended.lines()) == 3, "nothing belongs to what was before its end"


@pytest.mark.parametrize("kind", [str(kind) for kind in EventKind])
def test_an_event_of_any_kind_is_told_also_alone_and_without_data(kind: str) -> None:
    lines = Job().add(1.0, kind, "something happened", 3).lines()
    if kind in {"console-tail", "log-tail"}:
        assert lines == []
    else:
        assert [line.text != "" for line in lines] == [True]


def test_the_sums_are_those_of_the_events(printed: Callable[[], list[str]]) -> None:
    job = Job().begins().notice(100.0, 2).lost(200.0, 2).lost(200.0, 3)
    job.round(210.0, 2, 3).paused(211.0, 2, 1.5, 0).round(310.0, 3, 3).paused(311.0, 3, 0.5, 7)
    found = totals(job.events)
    assert found == (3, 2, 2, 2.0, 0.004, 7)
    show.show_story(job.events, 1.25)
    assert (
        printed()[-1]
        == "in all: 2 nodes lost or taken; 2 pauses, 2.00 s together ($0.0040); 7 steps made again; cost $1.25"
    )


def test_a_story_without_losses_ends_with_its_cost_and_of_long_ones_the_end_is_shown(
    printed: Callable[[], list[str]],
) -> None:
    show.show_story(Job().begins().events, 0.5)
    assert printed()[-1] == "in all: cost $0.5000"
    job = Job()
    for number in range(show.MAX_EVENTS + 7):
        job.add(float(number), "scaled", f"scaled to {number} [bold]nodes")
    show.show_story(job.events, 0.5)
    lines = printed()
    assert lines[0] == "7 earlier lines; --all has all"
    assert lines[-2].endswith("scaled to 56 [bold]nodes")
    show.show_story(job.events, 0.5, show_all=True)
    assert len(printed()) == 2 + show.MAX_EVENTS + 7
