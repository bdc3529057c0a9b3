"""Packing a folder: the same bytes for the same content, nothing from outside, and clear errors."""

from __future__ import annotations

import hashlib
import io
import os
import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spotsup import archive
from spotsup.archive import Archive, pack_directory
from spotsup.errors import PackError

LIMIT = 10_000_000


def write(folder: Path, *names: str, content: bytes = b"x") -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def members(packed: Archive) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(packed.data), mode="r:gz") as tar:
        return {member.name: member for member in tar}


def packed_names(folder: Path, *exclude: str) -> set[str]:
    found = members(pack_directory(folder, limit_bytes=LIMIT, exclude=exclude))
    return {name for name, member in found.items() if not member.isdir()}


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    first = write(tmp_path / "a b", "train.py", "lib/z.py", "lib/a.py")
    second = write(tmp_path / "other", "lib/a.py", "lib/z.py", "train.py")
    os.utime(second / "train.py", (1, 1))
    (second / "train.py").chmod(0o600)
    (second / "lib").chmod(0o700)
    one, two = (pack_directory(folder, limit_bytes=LIMIT) for folder in (first, second))
    assert one == two
    assert one.sha256 == hashlib.sha256(one.data).hexdigest()
    assert list(members(one)) == ["lib", "lib/a.py", "lib/z.py", "train.py"]


@settings(max_examples=30)
@given(content=st.dictionaries(st.from_regex(r"[a-zäß '-]{1,8}", fullmatch=True), st.binary(max_size=50), max_size=6))
def test_what_is_packed_comes_out_again(content: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("code")
    for name, data in content.items():
        (folder / name).write_bytes(data)
    packed = pack_directory(folder, limit_bytes=LIMIT)
    with tarfile.open(fileobj=io.BytesIO(packed.data), mode="r:gz") as tar:
        found = {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar}
    assert found == content


def test_what_does_not_shrink_is_stored_as_it_is(tmp_path: Path) -> None:
    weights, text = random.Random(7).randbytes(300_000), b"all the same " * 20_000
    for name, content in {"a.py": text, "weights.bin": weights, "z.py": text}.items():
        (tmp_path / name).write_bytes(content)
    packed = pack_directory(tmp_path, limit_bytes=10_000_000)
    assert weights[:1000] in packed.data
    assert len(weights) < len(packed.data) < len(weights) + 10_000, "all else is compressed"
    with tarfile.open(fileobj=io.BytesIO(packed.data), mode="r:gz") as tar:
        found = {name: tar.extractfile(name) for name in tar.getnames()}
        assert {name: file.read() for name, file in found.items() if file} == {
            "a.py": text,
            "weights.bin": weights,
            "z.py": text,
        }


def test_only_the_executable_bit_and_the_content_matter(tmp_path: Path) -> None:
    write(tmp_path, "run.sh", "plain")
    (tmp_path / "run.sh").chmod(0o4770)
    (tmp_path / "empty").mkdir()
    found = members(pack_directory(tmp_path, limit_bytes=LIMIT))
    assert (found["run.sh"].mode, found["plain"].mode, found["empty"].mode) == (0o755, 0o644, 0o755)
    assert {(each.uid, each.gid, each.uname, each.gname, each.mtime) for each in found.values()} == {(0, 0, "", "", 0)}


def test_what_is_not_code_is_excluded(tmp_path: Path) -> None:
    write(
        tmp_path, ".git/config", ".venv/bin/python", "node_modules/x.js", "a/__pycache__/b.pyc", "c.pyc", "a/train.py"
    )
    assert packed_names(tmp_path) == {"a/train.py"}


@pytest.mark.parametrize(
    ("pattern", "left_out"),
    [
        ("*.bin", {"a.bin", "data/b.bin", "data/deep/c.bin"}),
        ("data", {"data/b.bin", "data/deep/c.bin", "data/d.txt"}),
        ("data/", {"data/b.bin", "data/deep/c.bin", "data/d.txt"}),
        ("a.bin/", set()),
        ("/data/*.bin", {"data/b.bin"}),
        ("data/d.txt", {"data/d.txt"}),
        ("/d.txt", set()),
        ("deep/c.bin", set()),
        ("**/c.bin", {"data/deep/c.bin"}),
        ("data/**/c.bin", {"data/deep/c.bin"}),
        ("data/**", {"data/b.bin", "data/deep/c.bin", "data/d.txt"}),
        ("# a.bin", set()),
        ("  ", set()),
    ],
)
def test_patterns_of_the_ignore_file_are_excluded(tmp_path: Path, pattern: str, left_out: set[str]) -> None:
    everything = {"a.bin", "data/b.bin", "data/deep/c.bin", "data/d.txt", "train.py"}
    write(tmp_path, *everything)
    assert packed_names(tmp_path, *([] if pattern.startswith(("#", " ")) else [pattern])) == everything - left_out
    (tmp_path / ".spotsupignore").write_text(f"# not code\n\n{pattern}\n")
    assert packed_names(tmp_path) == everything - left_out | {".spotsupignore"}


def test_a_prefix_is_put_before_every_name(tmp_path: Path) -> None:
    write(tmp_path, "agent/main.py")
    assert list(members(pack_directory(tmp_path, limit_bytes=LIMIT, prefix="spotsup_trainer"))) == [
        "spotsup_trainer/agent",
        "spotsup_trainer/agent/main.py",
    ]


def test_links_within_the_folder_are_kept(tmp_path: Path) -> None:
    write(tmp_path, "lib/a.py")
    (tmp_path / "here").symlink_to("lib/a.py")
    (tmp_path / "lib" / "up").symlink_to("../lib")
    found = members(pack_directory(tmp_path, limit_bytes=LIMIT))
    assert (found["here"].linkname, found["lib/up"].linkname) == ("lib/a.py", "../lib")
    assert found["here"].issym()


@pytest.mark.parametrize("target", ["../outside", "/etc/passwd", "lib/../../outside", "/absolute/but/inside"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, target: str) -> None:
    folder = write(tmp_path / "code", "lib/a.py")
    (folder / "link").symlink_to(target)
    with pytest.raises(PackError, match=r"code/link is a link to .*, outside .*\.spotsupignore"):
        pack_directory(folder, limit_bytes=LIMIT)
    assert packed_names(folder, "link") == {"lib/a.py"}


def test_too_much_is_refused_and_the_largest_are_named(tmp_path: Path) -> None:
    write(tmp_path, "data/1", "data/2", content=bytes(2_000_000))
    write(tmp_path, "model.pt", content=bytes(3_000_000))
    write(tmp_path, "notes", content=bytes(500_000))
    write(tmp_path, "train.py")
    with pytest.raises(PackError) as caught:
        pack_directory(tmp_path, limit_bytes=5_000_000)
    assert str(caught.value) == (
        f"{tmp_path} holds 7.5 MB, more than the 5.0 MB that may be shipped; list what is not code in .spotsupignore; "
        "largest: data/ (4.0 MB), model.pt (3.0 MB), notes (0.5 MB)"
    )


def test_too_many_files_are_refused_before_all_were_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_ENTRIES", 5)
    write(tmp_path, *(f"data/{number}" for number in range(9)))
    with pytest.raises(PackError, match=r"holds more than 5 files; .* in \.spotsupignore, such as data"):
        pack_directory(tmp_path, limit_bytes=LIMIT)


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PackError, match="pipe is not a file, folder or link"):
        pack_directory(tmp_path, limit_bytes=LIMIT)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="nowhere is not a folder"):
        pack_directory(tmp_path / "nowhere", limit_bytes=LIMIT)


def test_including_a_file_again_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".spotsupignore").write_text("!important\n")
    with pytest.raises(PackError, match="`!important` includes a file again, which is not supported"):
        pack_directory(tmp_path, limit_bytes=LIMIT)


def test_an_ignore_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".spotsupignore").write_bytes(b"\xff")
    with pytest.raises(PackError, match="cannot be read"):
        pack_directory(tmp_path, limit_bytes=LIMIT)
