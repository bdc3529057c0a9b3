"""What is read of the parts of `make nightly`, and its line in the record."""

from __future__ import annotations

from tools.nightly import PARTS, Ran, read_output, record_line
from tools.stack import ROOT
from tools.stages import Taken

FAILED = """
=========================== short test summary info ============================
FAILED tests/e2e/test_chaos.py::test_a - AssertionError
ERROR tests/acceptance/test_stock.py::test_b - mount failed
============= 1 failed, 270 passed, 1 error in 612.00s (0:10:12) ==============
"""


def ran(part: int, status: int, output: str) -> Ran:
    return read_output(PARTS[part], Taken(PARTS[part].name, status, 612.4, 700.0), output)


def test_failed_tests_and_the_last_line_are_read() -> None:
    found = ran(0, 1, FAILED)
    assert found.failed == ("tests/e2e/test_chaos.py::test_a", "tests/acceptance/test_stock.py::test_b")
    assert found.last_line == "1 failed, 270 passed, 1 error in 612.00s (0:10:12)"


SEEDS = """
seed 47: P4: queued-0-gmt3h-2 was ended: its agent runs
seed 47 at commit 58de0f0: P4: queued-0-gmt3h-2 was ended: its agent runs
sim: 300 seeds, 611 virtual hours, violations 1
make[1]: *** [Makefile:400: sim] Error 1
make[1]: Leaving directory '/a clone'
"""


def test_of_the_simulated_world_the_seeds_are_read_and_nothing_that_make_says() -> None:
    found = ran(1, 2, SEEDS)
    assert found.failed == ("seed 47: P4: queued-0-gmt3h-2 was ended: its agent runs",)
    assert found.last_line == "sim: 300 seeds, 611 virtual hours, violations 1"


def test_the_record_has_what_ran_and_what_failed() -> None:
    tests, sim = ran(0, 1, FAILED), ran(1, 0, "300 scenarios kept all promises\n")
    assert record_line("2026-11-26", "abc1234", [tests, sim]) == (
        "| 2026-11-26 | abc1234 | tests 10 min; sim 10 min | "
        "tests: tests/e2e/test_chaos.py::test_a, tests/acceptance/test_stock.py::test_b |"
    )
    assert record_line("2026-11-26", "abc1234", [sim]).endswith("| sim 10 min | – |")
    silent = ran(2, 124, "")
    assert record_line("2026-11-26", "abc1234", [silent]).endswith("| frameworks: status 124 |")


def test_every_part_is_a_target_that_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for part in PARTS:
        if part.command.startswith("make "):
            assert f"\n{part.command.split()[1]}: " in makefile
