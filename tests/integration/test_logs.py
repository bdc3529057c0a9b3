"""A node's output in etcd: what is kept is bounded in bytes, and so is what is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from spotsup_trainer.agent import logs
from spotsup_trainer.agent.decisions import MAX_CHUNK_BYTES, LogBudget, log_budget
from spotsup_trainer.agent.logs import LogShipper
from spotsup_trainer.etcd import Etcd

from supervisor.cli.logs import LogPrinter
from supervisor.journal.output import begins_at

BUDGET = log_budget(64)


@dataclass
class Node:
    """A node whose log is sent once a second, by a clock that the test moves."""

    etcd: Etcd
    file: Path
    budget: LogBudget = BUDGET
    now: float = 0.0
    shipper: LogShipper = field(init=False)

    def __post_init__(self) -> None:
        self.file.touch()
        self.start()

    def start(self) -> None:
        self.shipper = LogShipper(
            self.etcd, self.file, "logs/n/", "n", self.budget, lambda: self.now, lambda: 1000.0 + self.now
        )

    def second(self, output: str) -> None:
        with self.file.open("a") as file:
            file.write(output)
        self.now += 1.0
        self.shipper.send()

    def chunks(self) -> list[bytes]:
        return [kv.value for kv in self.etcd.range("logs/n/0").kvs]

    def text(self) -> str:
        return b"".join(self.chunks()).decode(errors="replace")


@pytest.fixture
def node(etcd_endpoint: str, tmp_path: Path) -> Iterator[Node]:
    with closing(Etcd([etcd_endpoint], timeout_s=10.0)) as etcd:
        etcd.delete("logs/n/", prefix=True)
        yield Node(etcd, tmp_path / "n.log")
        etcd.delete("logs/n/", prefix=True)


def test_a_line_a_second_is_kept_for_hours_and_not_for_eight_seconds(node: Node) -> None:
    lines = [f"step {n} loss 0.{n}\n" for n in range(400)]
    for line in lines:
        node.second(line)
    assert node.text() == "".join(lines)
    assert len(node.chunks()) < 20


def test_an_agent_that_starts_anew_goes_on_behind_what_is_there(node: Node) -> None:
    node.second("one\n")
    node.start()
    node.second("two\n")
    assert node.text() == "one\ntwo\n"


def test_other_keys_beside_the_chunks_are_left_alone(node: Node) -> None:
    for name in ("x", "", "\u0663", "9" * 5000, "-0000001"):
        node.etcd.put(f"logs/n/{name}", b"not ours")
    node.second("one\n")
    chunk = node.etcd.get("logs/n/00000000")
    assert chunk is not None
    assert chunk.value == b"one\n"
    assert len(node.etcd.range("logs/n/").kvs) == 7, "and the times"


def test_a_flood_is_cut_to_the_budget_and_its_end_is_there(node: Node) -> None:
    before = node.etcd.range("logs/n/").revision
    for n in range(100):
        node.second("x" * 99_999 + f"\nend of second {n}\n")
    kept = sum(map(len, node.chunks()))
    assert kept <= min(BUDGET.kept_bytes, MAX_CHUNK_BYTES + 100 * BUDGET.bytes_per_s) + 100 * 200
    assert node.etcd.range("logs/n/").revision - before <= 101
    assert node.text().endswith("end of second 99\n")
    assert f"bytes skipped; the full log is {node.file} on n" in node.text()


def test_the_oldest_chunks_go_when_the_newest_do_not_fit(node: Node) -> None:
    node.budget = LogBudget(kept_bytes=10_000, bytes_per_s=16 << 10)
    node.start()
    for n in range(20):
        node.second(f"{n:04d}" + "y" * 1995 + "\n")
    assert 6_000 < sum(map(len, node.chunks())) <= 10_000
    assert node.text().endswith("0019" + "y" * 1995 + "\n")


def test_many_small_chunks_are_bounded_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MAX_CHUNKS", 5)
    monkeypatch.setattr(logs, "MIN_CHUNK_BYTES", 1)
    for n in range(20):
        node.second(f"{n}\n")
    assert node.text() == "15\n16\n17\n18\n19\n"


def test_a_progress_bar_costs_a_line_a_second(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    printer = LogPrinter(named=True)
    for n in range(30):
        node.second("".join(f"\r{n}.{tenth}%|{'#' * 80}" for tenth in range(10)))
        printer.show([{"node": "n", "chunk": "1", "text": node.text()}])
    assert len(node.text()) < 30 * 90
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"n | {n}.9%|{'#' * 80}" for n in range(29)], "the last line is not complete yet"


def begin_at(node: Node, since: float) -> str:
    """The first line that `spotsupctl logs --since` shows."""
    found = node.etcd.range("logs/").kvs
    chunk, at = begins_at([(kv.key.removeprefix("logs/"), kv) for kv in found], since)["n"]
    text = "".join(
        kv.value.decode()[at if kv.key.endswith(chunk) else 0 :]
        for kv in found
        if f"logs/n/{chunk}" <= kv.key < "logs/n/t"
    )
    return text.partition("\n")[0]


def test_what_was_printed_since_a_time_is_found_to_half_a_minute_also_after_the_agent_has_begun_anew(
    node: Node,
) -> None:
    for n in range(200):
        if n == 100:
            node.now += 3600.0
            node.start()
        node.second(f"line {n} {'z' * 50}\n")
    for n in (40, 99, 130, 180):
        printed_at = 1001.0 + n + (3600.0 if n >= 100 else 0.0)
        first = int(begin_at(node, printed_at).split()[1])
        assert n - 31 <= first <= n, "the line itself is shown, and little before it"
    assert begin_at(node, 0.0).startswith("line 0 ")
    assert begin_at(node, 3000.0).startswith("line 100 "), "between both"
    assert begin_at(node, 9000.0) == ""


def test_a_growing_chunk_is_printed_once(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    printer = LogPrinter(named=False)
    lines = [f"line {n} {'z' * 500}" for n in range(40)]
    for line in lines:
        node.second(line + "\n")
        for _ in range(2):
            found = node.etcd.range("logs/n/0").kvs
            printer.show([{"node": "n", "chunk": kv.key[-8:], "text": kv.value.decode()} for kv in found])
    assert capsys.readouterr().out.splitlines() == lines


def test_the_head_of_a_log_is_freed_on_disk_and_the_rest_is_still_followed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "KEPT_ON_DISK_BYTES", 1 << 20)
    monkeypatch.setattr(logs, "_FREED_AT_A_TIME_BYTES", 1 << 20)
    for _ in range(8):
        node.second("w" * 999_999 + "\n")
        node.shipper.free_head()
    found = node.file.stat()
    assert found.st_size == 8_000_000
    assert found.st_blocks * 512 < 3_500_000
    node.second("still here\n")
    assert node.text().endswith("still here\n")
