"""A node's whole log on a file system that outlives it, and what its journal warns of."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from spotsup_trainer.agent import log_mirror
from spotsup_trainer.agent.log_mirror import LogMirror, copy_end

from tests.support.machines import wait_for

JOURNALCTL = """#!/bin/sh
echo "$*" >>"$0.asked"
for last; do :; done
[ -e "${last#--cursor-file=}" ] || { echo first >"${last#--cursor-file=}"; echo "kernel: Out of memory"; }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a journalctl, and with nothing else on the PATH."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/journalctl"
    program.write_text(JOURNALCTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_all_of_it_is_there_once_the_agent_has_ended_and_another_goes_on_where_it_stopped(folder: Path) -> None:
    log, out = folder / "n1.log", folder / "mnt/out/logs"
    for text in ("one\ntwo\n", "three\n"):
        mirror = LogMirror(log, out, "n1", folder)
        mirror.start()
        with log.open("a") as file:
            file.write(text)
        mirror.close()
    assert (out / "n1.log").read_text() == "one\ntwo\nthree\n"
    assert (out / "n1.journal").read_text() == "kernel: Out of memory\n", "each warning once"
    asked = (folder / "bin/journalctl.asked").read_text().splitlines()
    assert set(asked) == {f"-q -b -p warning -o short-iso --no-pager -n 1000 --cursor-file={folder}/journal-cursor"}


def test_without_a_journal_and_without_a_log_nothing_is_written(folder: Path) -> None:
    (folder / "bin/journalctl").unlink()
    mirror = LogMirror(folder / "n1.log", folder / "logs", "n1", folder)
    mirror.start()
    mirror.close()
    assert list((folder / "logs").iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_logged_once_and_tried_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, in_the_way = folder / "n1.log", folder / "logs"
    log.write_text("one\n")
    in_the_way.write_text("a file")
    mirror = LogMirror(log, in_the_way, "n1", folder, every_s=0.01)
    mirror.start()
    wait_for(lambda: caplog.messages, "a first warning")
    in_the_way.unlink()
    mirror.close()
    assert (in_the_way / "n1.log").read_text() == "one\n"
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"the log of n1 is not copied to {in_the_way}: ")


def test_a_log_of_many_pieces_is_copied_whole(tmp_path: Path) -> None:
    content = os.urandom(3 * log_mirror._CHUNK_BYTES + 7)
    (tmp_path / "a").write_bytes(content)
    copy_end(tmp_path / "a", tmp_path / "b")
    copy_end(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == content


def test_what_the_node_has_freed_is_a_hole_in_the_copy(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    with source.open("wb") as file:
        file.write(b"first")
        file.truncate(1 << 20)
        file.seek(1 << 20)
        file.write(b"second")
    subprocess.run(["fallocate", "--punch-hole", "--length", str(1 << 20), source], check=True)
    copy_end(source, target)
    copy_end(source, target)
    assert target.read_bytes() == source.read_bytes() == bytes(1 << 20) + b"second"
    assert target.stat().st_blocks * 512 < 1 << 16
