"""What of `make acceptance` needs no machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bootstrap.gpu.step import Condition, diagnose
from tests.acceptance.checks import recorded
from tests.acceptance.image import MIRROR, mirror_in, mounts_below, plainly_named, torch_files
from tests.acceptance.reading import lost_steps, phases, steps_in
from tests.acceptance.table import BrokenError, Results, expect


def test_the_mirror_is_the_one_of_apt_where_that_has_debian_12() -> None:
    other = "http://other.example/ubuntu noble main\nhttp://mirror.example/debian-security bookworm-security main\n"
    assert mirror_in(f"{other}http://mirror.example/debian bookworm main\n") == "http://mirror.example/debian"
    assert mirror_in(other) == mirror_in("") == MIRROR


def test_what_a_killed_debootstrap_left_mounted_is_found_before_anything_is_removed() -> None:
    lines = """\
22 28 0:20 / /proc rw,nosuid - proc proc rw
91 28 0:20 / /a\\040clone/.tools/acceptance/new/root/proc rw,relatime - proc proc rw
92 91 0:44 / /a\\040clone/.tools/acceptance/new/root/proc/fs rw,relatime shared:3 - tmpfs none rw
93 28 0:21 / /a\\040clone/.tools/acceptance/newer rw - tmpfs none rw
"""
    folder = Path("/a clone/.tools/acceptance/new")
    assert mounts_below(folder, lines) == [folder / "root/proc", folder / "root/proc/fs"]


def test_debootstrap_gets_a_path_without_a_space_of_whatever_clone(tmp_path: Path) -> None:
    plain, root = Path("/srv/spotsup-0.1/root"), tmp_path / "a clone" / "root"
    root.mkdir(parents=True)
    with plainly_named(plain) as target:
        assert target == plain
    with pytest.raises(FileNotFoundError, match="bin"), plainly_named(root) as target:
        (target / "etc" / ("no" if " " in str(target) else "bin")).mkdir()
    assert not target.parent.exists()


def test_torch_is_copied_with_what_it_needs_and_no_more() -> None:
    tops = {below.parts[0] for _, below in torch_files()}
    assert {"torch", "sympy", "typing_extensions.py"} <= tops
    assert not {"_pytest", "mypy", "boto3"} & tops


def test_the_recorded_gpu_asks_for_a_reboot_once() -> None:
    assert diagnose(recorded("driver_updated_underneath")).condition is Condition.RESTART
    assert diagnose(recorded("aws_image_t4")).condition is Condition.WORKS


def test_a_run_is_good_when_all_of_it_was_shown(tmp_path: Path) -> None:
    results = Results(("one", "two"))
    with results.row("one") as row:
        row.observed = "seen"
    assert not results.ok  # the second was not come to
    with pytest.raises(BrokenError, match="it is 2"), results.row("two"):
        expect(holds=False, observed="it is 2")
    assert not results.ok
    results.show("Title", tmp_path / "build" / "out.json")
    written = json.loads((tmp_path / "build" / "out.json").read_text())
    assert [(row["name"], row["ok"], row["observed"]) for row in written["rows"]] == [
        ("one", True, "seen"),
        ("two", False, "it is 2"),
    ]
    with results.row("two"):
        expect(holds=True, observed="")
    assert results.ok


def test_steps_that_were_made_twice_are_counted() -> None:
    printed = "n1 | step 7 restart 0 world 2 loss 3.1\nn1 | step 8 restart 0 world 2 loss 3.0\nn1 | [spotsup] round 2\n"
    assert steps_in(printed) == [(7, 1, 2), (8, 1, 2)]
    # Step 9 ends round 1, and is not printed.
    assert lost_steps(steps_in(f"{printed}n1 | step 10 restart 1 world 2 loss 2.9")) == 0
    assert lost_steps(steps_in(f"{printed}n1 | step 9 restart 1 world 2 loss 2.9")) == 1
    assert lost_steps(steps_in(f"{printed}n1 | step 4 restart 1 world 2 loss 2.9")) == 6
    with pytest.raises(AssertionError, match="step 10 of round 2 was not made"):
        lost_steps(steps_in(f"{printed}n1 | step 11 restart 1 world 2 loss 2.9"))


def test_the_phases_of_a_start_are_read_from_the_daemons_log() -> None:
    log = """\
Started spotsupd.service.
2026-11-22T23:20:41.000000Z [info     ] requested n1 in us-east-1a (m5.large) job=chars kind=launch-requested
2026-11-22T23:20:44.500000Z [info     ] waiting for 2 nodes to begin; 2 nodes are bootstrapping job=chars
2026-11-22T23:21:44.500000Z [info     ] waiting for 2 nodes to begin; 2 nodes are bootstrapping job=chars
2026-11-22T23:22:27.000000Z [info     ] waiting for 2 nodes to begin; 2 nodes are ready job=chars
"""
    found = phases(log)
    asked = found["machines are asked for"]
    assert {name: at - asked for name, at in found.items()} == {
        "machines are asked for": 0.0,
        "machines answer": 3.5,
        "nodes are ready": 106.0,
    }
