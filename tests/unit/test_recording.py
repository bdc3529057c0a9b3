"""Recordings of spot markets: both kinds of files, what is wrong with one, and parts of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsup_simulator.replay.ledger import integral, offered_node_h
from spotsup_simulator.replay.recording import Series, read

from supervisor.errors import UsageError


def written(folder: Path, text: str, name: str = "market.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


ZONES = "seconds,a,b\n100,0,2\n400,3,2\n700,1,0\n"


def test_a_recording_of_zones_begins_at_zero_and_ends_one_interval_after_its_last_row(tmp_path: Path) -> None:
    market = read(written(tmp_path, ZONES))
    assert (market.name, market.zones, market.end_s) == ("market", ("a", "b"), 900.0)
    assert [market.capacity.at(second) for second in (0.0, 299.9, 300.0, 10_000.0)] == [(0, 2), (0, 2), (3, 2), (1, 0)]
    assert market.drops == ((600.0,), (600.0,))


def test_a_recording_of_nodes_is_one_zone_with_as_many_machines(tmp_path: Path) -> None:
    rows = "0,add,n1\n0,add,n2\n60,remove,n1\n90,add,n3\n120,remove,n2\n120,remove,n3\n"
    market = read(written(tmp_path, f"seconds,event,node\n{rows}"))
    assert [market.capacity.at(second) for second in (0.0, 60.0, 90.0, 120.0)] == [(2,), (1,), (2,), (0,)]
    assert market.drops == ((60.0, 120.0),)


def test_prices_are_those_of_the_zones_whatever_their_order(tmp_path: Path) -> None:
    prices = written(tmp_path, "seconds,b,c,a\n100,0.5,9,0.25\n450,0.75,9,0.25\n", "prices.csv")
    market = read(written(tmp_path, ZONES), prices)
    assert market.prices is not None
    assert [market.prices.at(second) for second in (0.0, 350.0)] == [(0.25, 0.5), (0.25, 0.75)]


def test_a_part_begins_at_zero_and_has_what_was_there_before(tmp_path: Path) -> None:
    part = read(written(tmp_path, ZONES)).cut(350.0, 650.0)
    assert (part.capacity.seconds, part.capacity.rows) == ((0.0, 250.0), ((3, 2), (1, 0)))
    assert (part.end_s, part.drops) == (300.0, ((250.0,), (250.0,)))
    with pytest.raises(UsageError, match=r"market has 0.2 h: nothing is left from 1 h on"):
        read(written(tmp_path, ZONES)).cut(3600.0, 7200.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty: a recording begins with"),
        ("time,a\n0,1\n", "begins with 'time,a', not with `seconds,ZONE,…` or `seconds,event,node`"),
        ("seconds\n0\n", "begins with 'seconds', not with"),
        ("seconds,a,a\n0,1,1\n", "names a zone twice"),
        ("seconds,a\n", "has no rows below its first line"),
        ("seconds,event,node\n", "has no rows below its first line"),
        ("seconds,a\n0,1\n\n5\n", ":4 has 1 columns, and the first line has 2"),
        ("seconds,a\n0,1\n0,2\n", ":3: 0 s does not come after 0 s"),
        ("seconds,a\n0,one\n", ":2: 'one' is no number"),
        ("seconds,a\n0,nan\n", ":2: 'nan' is no number of seconds, machines or dollars"),
        ("seconds,a\n0,-1\n", ":2: -1 is not a whole number from 0 to 100000"),
        ("seconds,a\n0,1.5\n", ":2: 1.5 is not a whole number"),
        ("seconds,event,node\n0,add,n\n5,add,n\n", ":3: add n is neither a new node nor the end of one that is there"),
        ("seconds,event,node\n0,remove,n\n", ":2: remove n is neither"),
        ("seconds,event,node\n9,add,n\n5,remove,n\n", ":3: 5 s comes before 9 s"),
        ("seconds,event,node\n9,add\n", ":2 has 2 columns, not seconds,event,node"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_with_its_line(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read(written(tmp_path, text))
    assert str(tmp_path / "market.csv") in str(refused.value)
    assert sentence in str(refused.value)


def test_prices_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    prices = written(tmp_path, "seconds,a\n0,1\n", "prices.csv")
    with pytest.raises(UsageError, match=r"prices.csv has no prices of b"):
        read(written(tmp_path, ZONES), prices)
    with pytest.raises(UsageError, match="a file of prices cannot go with it"):
        read(written(tmp_path, "seconds,event,node\n0,add,n\n"), prices)
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        read(tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(b"seconds,\xff\n")
    with pytest.raises(UsageError, match="is not CSV"):
        read(tmp_path / "bytes.csv")


def test_what_is_offered_is_the_fullest_zone_at_each_time_if_it_has_enough(tmp_path: Path) -> None:
    market = read(written(tmp_path, ZONES))
    assert offered_node_h(market, 1, 2, 900.0) == pytest.approx((2 * 300 + 2 * 300 + 1 * 300) / 3600)
    assert offered_node_h(market, 3, 4, 900.0) == pytest.approx(3 * 300 / 3600)
    assert offered_node_h(market, 1, 2, 450.0) == pytest.approx((2 * 300 + 2 * 150) / 3600)


def test_money_is_the_sum_over_prices_that_change() -> None:
    series = Series((0.0, 100.0, 200.0), ((1.0,), (2.0,), (4.0,)))
    assert integral(series, 0, 50.0, 250.0) == pytest.approx(50 + 200 + 200)
    assert integral(series, 0, 120.0, 130.0) == pytest.approx(20)
