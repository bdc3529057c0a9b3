"""The index of images in trainer/examples: who walks the tree, and which index is believed."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.stack import ROOT

SCRIPT = ROOT / "trainer" / "examples" / "image_index.py"
SUFFIXES = {".jpg", ".png"}
NAMES = ("dog/b.JPG", "dog/a.png", "dog/more/c.jpg", "dog/more-/d.jpg", "cat/z.jpg", "cat/notes.txt")
IMAGES = {"cat": ["z.jpg"], "dog": ["a.png", "b.JPG", "more/c.jpg", "more-/d.jpg"]}
# Prints which folders a start lists.
LISTED = """
import os, runpy, sys
from pathlib import Path
sys.addaudithook(lambda event, arguments: event == "os.scandir" and print(os.fspath(arguments[0])))
images_of = runpy.run_path(sys.argv[1])["images_of"]
images_of(Path(sys.argv[2]), {".jpg", ".png"}, Path(sys.argv[3]) if len(sys.argv) > 3 else None)
"""


def add(root: Path, *names: str) -> None:
    """Images, and folders that have not been changed for an hour."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    settle(root)


def settle(root: Path, ns: int = 10**18) -> None:
    for folder in root.rglob("*"):
        if folder.is_dir():
            os.utime(folder, ns=(ns, ns))


def listed(root: Path, *kept_in: Path, **environ: str) -> list[str]:
    """The folders below `root` that a start lists, as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", LISTED, SCRIPT, root, *kept_in],
        env={**os.environ, "HOME": str(root.parent / "home"), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return sorted(str(Path(line).relative_to(root)) for line in done.stdout.splitlines())


def images(root: Path, kept_in: Path | None = None) -> Any:
    return runpy.run_path(str(SCRIPT))["images_of"](root, SUFFIXES, kept_in)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    add(tmp_path / "data", *NAMES)
    return tmp_path / "data"


ALL = [".", "cat", "dog", "dog/more", "dog/more-"]


def test_a_second_start_does_not_walk_the_tree_and_finds_the_same(root: Path) -> None:
    assert listed(root) == ALL
    assert listed(root) == ["."]
    found = images(root)
    assert (found, list(found)) == (IMAGES, ["cat", "dog"])
    paths = [path.relative_to(root / "dog") for path in sorted((root / "dog").rglob("*")) if path.suffix]
    assert [Path(name) for name in found["dog"]] == paths, "the order of samples is that of pathlib"


def test_only_the_first_process_of_a_machine_writes_the_index(root: Path) -> None:
    assert listed(root, LOCAL_RANK="1") == ALL
    assert listed(root, LOCAL_RANK="0") == ALL
    assert listed(root, LOCAL_RANK="1") == ["."]


def test_the_index_is_kept_elsewhere_where_the_data_cannot_be_written(root: Path, tmp_path: Path) -> None:
    part = f".image-index.json.{os.uname().nodename}.part"
    (root / part).symlink_to(tmp_path / "nothing" / "x")  # as a mount that is read-only: writing fails, for root, too
    assert images(root) == IMAGES
    assert [path.parent.name for path in (tmp_path / "cache").rglob("images-*.json")] == ["image-index"]
    assert listed(root) == ["."]


def test_a_folder_may_be_named_for_the_index(root: Path, tmp_path: Path) -> None:
    assert listed(root, tmp_path / "out") == ALL
    assert listed(root, tmp_path / "out") == ["."]
    assert [path.suffix for path in (tmp_path / "out").iterdir()] == [".json"]
    assert not (root / ".image-index.json").exists()
    add(tmp_path / "other", "cow/a.jpg")
    assert images(tmp_path / "other", tmp_path / "out") == {"cow": ["a.jpg"]}


def test_without_a_place_to_write_to_the_tree_is_walked(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        assert listed(root, tmp_path / "file") == ALL


@pytest.mark.parametrize("kept", [0, 40, -1])
def test_a_torn_index_is_not_believed(root: Path, kept: int) -> None:
    images(root)
    whole = (root / ".image-index.json").read_bytes()
    (root / ".image-index.json").write_bytes(whole[:kept])
    assert listed(root) == ALL
    assert (root / ".image-index.json").read_bytes() == whole
    assert [path.name for path in root.iterdir() if path.is_file()] == [".image-index.json"]


@pytest.mark.parametrize("change", [b'"cat":["z.jpg"]', b'"format": 1'])
def test_a_damaged_index_is_not_believed(root: Path, change: bytes) -> None:
    images(root)
    whole = (root / ".image-index.json").read_bytes()
    (root / ".image-index.json").write_bytes(whole.replace(change, change.replace(b"z", b"y").replace(b"1", b"2")))
    assert (root / ".image-index.json").read_bytes() != whole
    assert images(root) == IMAGES


@pytest.mark.parametrize("index", ["[]", "{}", '{"suffixes":[".jpg",".png"],"times":3,"images":{}}'])
def test_an_index_of_another_shape_is_not_believed(root: Path, index: str) -> None:
    head = runpy.run_path(str(SCRIPT))["_head"](index.encode())
    (root / ".image-index.json").write_text(f"{head}\n{index}")
    assert images(root) == IMAGES


def test_a_file_or_a_class_that_came_or_went_makes_the_index_stale(root: Path) -> None:
    images(root)
    (root / "dog/more/e.jpg").touch()
    assert images(root)["dog"] == ["a.png", "b.JPG", "more/c.jpg", "more/e.jpg", "more-/d.jpg"]
    settle(root)
    images(root)
    (root / "cat/z.jpg").unlink()
    assert images(root)["cat"] == []
    settle(root)
    images(root)
    add(root, "ant/a.jpg")
    assert list(images(root)) == ["ant", "cat", "dog"]


def test_an_index_for_other_suffixes_is_not_believed(root: Path) -> None:
    runpy.run_path(str(SCRIPT))["images_of"](root, {".jpg"})
    assert images(root) == IMAGES


def test_no_index_is_written_while_files_arrive(root: Path, tmp_path: Path) -> None:
    (root / "dog/more/e.jpg").touch()
    assert len(images(root)["dog"]) == 5
    assert not (root / ".image-index.json").exists()
    assert not (tmp_path / "cache").exists()


def test_names_that_are_no_text_are_kept(root: Path) -> None:
    (Path(os.fsdecode(os.fsencode(root / "cat") + b"/\xff\n.jpg"))).touch()
    settle(root)
    first = images(root)
    assert "\udcff\n.jpg" in first["cat"]
    assert json.loads((root / ".image-index.json").read_bytes().splitlines()[0])["format"] == 1
    assert listed(root) == ["."]
    assert images(root) == first
