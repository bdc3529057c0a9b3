"""ImageNet's validation images are rearranged by class, from private buckets too, and again after an interruption."""

from __future__ import annotations

import base64
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.s3 import S3, Fault, Request
from tools.stack import ROOT

EXAMPLES = ROOT / "trainer" / "examples"
# Written by scipy 1.17: `savemat(..., do_compression=True)` of three rows with all fields of ImageNet's own.
META = base64.b64decode(
    b"TUFUTEFCIDUuMCBNQVQtZmlsZSBQbGF0Zm9ybTogcG9zaXgsIENyZWF0ZWQgb246IE1vbiBOb3YgMjMgMTQ6MTA6MTMgMjAyNgAA"
    b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABSU0PAAAAhQEAAHicpZPRSsMwFIZPu246"
    b"xKHihZd9AC/aqWy7cqCCAxFRmJelbLENtqk0GVvfwAfwIXw173wEExs1rYGV7NBDek75/nNy0vQA4L0DwB/Y5m5DaW0Zt7hb0re4"
    b"04JQxCj/7sC+zL9yn9w8TO8v+p7fDyaXQuDxtlx/bZnlc6omoiSjlQRZpMEsxsk8R+Q7UQl+NAhiQYxwFDOJsDzEJMBpGCEKPZ4c"
    b"wt9+OrX9WIoL68p8aZ/ngh8rvKPhuwq/J2Pi9X1/NBiOZF7oXK/ROarpiPgZM/cpWx2700XygqibhrM8Y5g26atX0xMxTcMkcaMc"
    b"FUIWNpxPyXsKv6PhQVkdhdu0rjF/9zZu0rfKO/wm2LLuGMz+B88bnJwp/a/T0Z3fFYkSTGOXXzqG8v/z1+lYFR0LVtDs3Or7Bw2n"
    b"mztAde46zrReE+6wbcZ9tDY5X27+4NRT9jtco9Op6YgYEYZZ0ayP3RovYhaHzF3GeBa7mBrOz27I2RXO4e+2Ub0Dwz6FfQHsnFOF"
)
IMAGES = {f"val/ILSVRC2012_val_{number:08d}.JPEG": b"image %d" % number for number in range(1, 7)}
WNIDS = ("n02119789", "n02100735", "n02119789", "n01440764", "n02100735", "n02119789")


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names in imagenet_classes.py."""
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / "imagenet_classes.py")))


def copied(out: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "copy_bucket.py"), "--out", str(out), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "trainer"), **environ}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def rearranged() -> dict[str, bytes]:
    return {f"{kind}/{Path(key).name}": data for kind, (key, data) in zip(WNIDS, IMAGES.items(), strict=True)}


# -- which file names the classes ----------------------------------------------------------------------------


def test_each_known_file_gives_the_same_classes(classes: Any, tmp_path: Path) -> None:
    meta = tmp_path / "meta.mat"
    meta.write_bytes(META)
    assert classes.synsets_of(meta) == {1: "n02119789", 2: "n02100735", 1001: "n00001740"}
    names = ["n02119789", "n02100735", "n02119789"]
    lines, solution, numbers = (tmp_path / name for name in ("labels.txt", "LOC_val_solution.csv", "truth.txt"))
    lines.write_text("".join(f"{name}\n" for name in names))
    rows = [f"ILSVRC2012_val_{number:08d},{name} 1 2 3 4 {name} 5 6 7 8" for number, name in enumerate(names, 1)]
    solution.write_text("\n".join(["ImageId,PredictionString", *reversed(rows)]))
    numbers.write_text("1\n2\n1\n")
    expected = {f"ILSVRC2012_val_{number:08d}": name for number, name in enumerate(names, 1)}
    assert classes.classes_of(lines) == expected
    assert classes.classes_of(solution) == expected
    assert classes.classes_of(numbers, meta) == expected


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("truth.txt", "1\n2\n", "has numbers: name the development kit's meta.mat"),
        ("labels.txt", "tench\n", "has 'tench' where a WordNet id"),
        ("labels.txt", "", "has 'nothing' where a WordNet id"),
        ("solution.csv", "ImageId,PredictionString\n", "has 'nothing' where a WordNet id"),
        ("missing.txt", None, "cannot be read"),
    ],
)
def test_any_other_file_is_refused_in_one_sentence(
    classes: Any, tmp_path: Path, name: str, text: str | None, sentence: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit, match=sentence):
        classes.classes_of(tmp_path / name)


@pytest.mark.parametrize("broken", [b"", b"x" * 500, META[:300], META[:140] + b"\0" * 200])
def test_a_broken_meta_mat_is_refused_in_one_sentence(classes: Any, tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "meta.mat").write_bytes(broken)
    with pytest.raises(SystemExit, match=r"is not the meta\.mat of ImageNet's development kit"):
        classes.synsets_of(tmp_path / "meta.mat")


def test_a_number_that_meta_mat_does_not_have_is_refused(classes: Any, tmp_path: Path) -> None:
    (tmp_path / "meta.mat").write_bytes(META)
    (tmp_path / "truth.txt").write_text("1\n7\n")
    with pytest.raises(SystemExit, match="has no class 7"):
        classes.classes_of(tmp_path / "truth.txt", tmp_path / "meta.mat")


# -- the data job --------------------------------------------------------------------------------------------


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.txt"
    path.write_text("".join(f"{each}\n" for each in WNIDS))
    return path


def test_a_private_bucket_is_copied_and_rearranged_and_goes_on_where_it_stopped(tmp_path: Path, labels: Path) -> None:
    out = tmp_path / "out"
    with S3().running() as s3:
        for key, data in IMAGES.items():
            s3.client.put_object(Bucket=s3.bucket, Key=f"imagenet/{key}", Body=data)
        arguments = ("--bucket", f"s3://{s3.bucket}/imagenet", "--prefix", "val/", "--val-classes", str(labels))
        denied = "ILSVRC2012_val_00000004"
        s3.fault = lambda request: forbidden(request, denied)
        stopped = copied(out, *arguments, "--parallel", "1", **s3.environ)
        assert stopped.returncode == 1
        assert "ILSVRC2012_val_00000004.JPEG cannot be copied" in stopped.stderr
        assert "access is denied" in stopped.stderr
        there = [name for name in rearranged() if (out / name).exists()]
        assert 0 < len(there) < len(IMAGES)
        s3.fault = lambda _: None
        before = len(reads(s3))
        done = copied(out, *arguments, **s3.environ)
        assert (done.returncode, done.stderr) == (0, "")
        left = len(IMAGES) - len(there)
        assert done.stdout.splitlines()[-1] == f"6 objects are there, {left} of them copied by this run"
        assert len(reads(s3)) - before == left
        assert files(out) == rearranged()
        again = copied(out, *arguments, **s3.environ)
        assert again.stdout.splitlines()[-1] == "6 objects are there, 0 of them copied by this run"


def forbidden(request: Request, name: str) -> Fault | None:
    refused = ("403 Forbidden", "AccessDenied", "Access Denied")
    return Fault(error=refused) if request.method == "GET" and name in request.key else None


def reads(s3: S3) -> list[Request]:
    return [each for each in s3.requests if each.method == "GET" and each.key.endswith(".JPEG")]


def test_an_image_without_a_class_is_refused_before_anything_is_copied(tmp_path: Path, labels: Path) -> None:
    out = tmp_path / "out"
    with S3().running() as s3:
        for key, data in {**IMAGES, "val/ILSVRC2012_val_00000007.JPEG": b"one more"}.items():
            s3.client.put_object(Bucket=s3.bucket, Key=key, Body=data)
        done = copied(out, "--bucket", f"s3://{s3.bucket}", "--val-classes", str(labels), **s3.environ)
    assert done.returncode == 1
    assert "the class of 'val/ILSVRC2012_val_00000007.JPEG' is not in the file of classes" in done.stderr
    assert not out.exists()


def test_a_bucket_that_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    with S3().running() as s3:
        done = copied(tmp_path, "--bucket", "s3://no-such-bucket-here", **s3.environ)
    assert done.returncode == 1
    assert "there is no such bucket" in done.stderr
    assert "Traceback" not in done.stderr
