"""A data job: copy a bucket's objects to a file system, one folder per class, and go on where the last run stopped.

    kind: data
    code: trainer/examples
    run: python copy_bucket.py --bucket https://a-bucket.s3.us-east-1.amazonaws.com --prefix train/ --out /mnt/train

`https://…` is a bucket that shows itself to everybody (ListObjectsV2), read with the standard library alone. `s3://…`,
`gs://…` and `abfs://…` are private ones, read with the machine's role through the package obstore.

ImageNet's validation images are in one folder; with a file that names their classes they are rearranged as the others
are (imagenet_classes.py says which files):

    python copy_bucket.py --bucket s3://a-bucket --prefix val/ --out /mnt/val --val-classes LOC_val_solution.csv

It may be ended anywhere and run again: an object appears under its name when it is complete, and those that are there
in their size are not read again.
"""

from __future__ import annotations

import argparse
import shutil
import time
import urllib.request
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

from imagenet_classes import classes_of  # type: ignore[import-not-found]  # beside this file

TIMEOUT_S = 60.0
TRIES = 5
TELL_EVERY_S = 1.0
PART = ".copy_bucket-part"
BATCH = 1000  # files that are handed to the threads at a time
CHUNK_BYTES = 32 << 20  # of a private object, read at a time

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Item:
    """One object: its key, and its size in bytes."""

    key: str
    size: int


class Source(Protocol):
    """Where objects come from."""

    def list(self, prefix: str) -> Iterator[Item]:
        """Return all objects below a prefix."""
        ...

    def write(self, item: Item, part: Path) -> None:
        """Write the whole object into a file. Raises OSError."""
        ...


def copy(source: Source, item: Item, place: Path) -> None:
    """Copy the object at `place`, complete or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    # A machine that is cut off may still copy the same object: each writes a file of its own.
    part = place.with_name(f".{uuid.uuid4().hex}{PART}")

    def fetch() -> None:
        source.write(item, part)
        if part.stat().st_size != item.size:
            raise OSError(f"{part.stat().st_size} bytes came, {item.size} were listed")

    _patiently(fetch, f"{item.key} cannot be copied")
    part.replace(place)


class PrivateBucket:
    """A bucket that only the machine's role may read. `url`: s3://BUCKET, gs://BUCKET or abfs://CONTAINER@ACCOUNT…"""

    def __init__(self, url: str) -> None:
        from spotsup_trainer.objects.store import open_store
        from spotsup_trainer.objects.url import checked

        try:
            self._store = open_store(checked(url))
        except (OSError, ValueError) as error:
            raise SystemExit(str(error)) from error

    def list(self, prefix: str) -> Iterator[Item]:
        """As Source says."""
        try:
            found = self._store.listed()
        except OSError as error:
            raise SystemExit(str(error)) from error
        return (Item(each.name, each.size) for each in found if each.name.startswith(prefix))

    def write(self, item: Item, part: Path) -> None:
        """As Source says, but a refusal is final: the client has tried again already."""
        with part.open("wb") as file:
            for start in range(0, item.size, CHUNK_BYTES):
                try:
                    data = self._store.get_range(item.key, start, min(CHUNK_BYTES, item.size - start))
                except OSError as error:
                    raise SystemExit(f"{item.key} cannot be copied: {error}") from error
                file.write(data)


class Bucket:
    """What a store shows over HTTP. `url`: the bucket's own address."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("https://", "http://")):
            raise SystemExit(f"{url} is no bucket's address; write https://…, s3://…, gs://… or abfs://…")
        self._url = url.rstrip("/")

    def list(self, prefix: str) -> Iterator[Item]:
        """Yield all objects below a prefix, a thousand per request."""
        token = ""
        while True:
            query = {"list-type": "2", "prefix": prefix, **({"continuation-token": token} if token else {})}
            page = _patiently(partial(self._page, query), f"{self._url} cannot be listed")
            for each in page.findall("{*}Contents"):
                yield Item(each.findtext("{*}Key", ""), int(each.findtext("{*}Size", "0")))
            token = page.findtext("{*}NextContinuationToken", "")
            if not token:
                return

    def write(self, item: Item, part: Path) -> None:
        """As Source says."""
        with self._open(f"/{quote(item.key)}") as source, part.open("wb") as file:
            shutil.copyfileobj(source, file)

    def _page(self, query: dict[str, str]) -> ET.Element:
        with self._open(f"/?{urlencode(query)}") as answer:
            return ET.fromstring(answer.read())  # noqa: S314 - it comes from the store that the data come from

    def _open(self, path: str) -> Any:
        return urllib.request.urlopen(self._url + path, timeout=TIMEOUT_S)  # noqa: S310 - http, as `url` was checked


def _patiently(act: Callable[[], Result], trouble: str) -> Result:
    """Return what `act` returns, tried a few times. Raises SystemExit with one sentence."""
    for number in range(TRIES):
        try:
            return act()
        except (OSError, HTTPException, ET.ParseError) as error:
            if number == TRIES - 1:
                raise SystemExit(f"{trouble}: {error}") from error
            time.sleep(2**number)
    raise AssertionError("a try returns or raises")


def place_of(key: str, prefix: str, out: Path) -> Path:
    """Rearranged: train/2024/cat/7.jpg below the prefix train/ becomes cat/2024-7.jpg, the class first.

    Raises SystemExit for a key that would lead out of `out`, or names no file.
    """
    *folders, name = PurePosixPath(key.removeprefix(prefix).lstrip("/")).parts or ("",)
    if not name or ".." in {*folders, name}:
        raise SystemExit(f"{key!r} names no file below {out}")
    *rest, kind = folders or ["unsorted"]
    return out / kind / "-".join((*rest, name))


def place_by_class(key: str, out: Path, classes: Mapping[str, str]) -> Path:
    """Return the folder of its class, by the image's name. Raises SystemExit for an image whose class is not known."""
    name = PurePosixPath(key).name
    kind = classes.get(PurePosixPath(name).stem)
    if kind is None:
        raise SystemExit(f"the class of {key!r} is not in the file of classes: is that the file of these images?")
    return out / kind / name


def places(items: Sequence[Item], prefix: str, out: Path, classes: Mapping[str, str] | None = None) -> dict[Path, Item]:
    """Return where each goes. Raises SystemExit where two would be one file."""
    found: dict[Path, Item] = {}
    for item in items:
        place = place_by_class(item.key, out, classes) if classes else place_of(item.key, prefix, out)
        if (other := found.setdefault(place, item)) is not item:
            raise SystemExit(f"{other.key!r} and {item.key!r} would both be {place}; rearrange them otherwise")
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Copy missing files, and print the progress."""
    parser = argparse.ArgumentParser(description="Copy a bucket to a file system, rearranged; may be run again.")
    parser.add_argument("--bucket", required=True, help="its address: https://…, s3://…, gs://…, abfs://…")
    parser.add_argument("--prefix", default="", help="only keys that begin so")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--val-classes", type=Path, metavar="FILE", help="the classes of ImageNet's validation images")
    parser.add_argument("--meta", type=Path, metavar="FILE", help="meta.mat, if those are numbers")
    parser.add_argument("--parallel", type=int, default=16, metavar="N", help="files that are copied at a time")
    options = parser.parse_args(argv)
    classes = classes_of(options.val_classes, options.meta) if options.val_classes else None
    source: Source = (Bucket if options.bucket.startswith("http") else PrivateBucket)(options.bucket)
    items = [item for item in source.list(options.prefix) if not item.key.endswith("/")]
    total, done, copied, told_at = sum(item.size for item in items), 0, 0, 0.0
    wanted = list(places(items, options.prefix, options.out, classes).items())
    for left in options.out.rglob(f".*{PART}"):  # by a run that was ended
        left.unlink(missing_ok=True)

    def fetch(place: Path, item: Item) -> int:
        if place.is_file() and place.stat().st_size == item.size:
            return 0
        copy(source, item, place)
        return 1

    with ThreadPoolExecutor(options.parallel) as threads:
        for begin in range(0, len(wanted), BATCH):
            calls = [(threads.submit(fetch, *each), each[1]) for each in wanted[begin : begin + BATCH]]
            for call, item in calls:
                try:
                    copied += call.result()
                except BaseException:
                    threads.shutdown(wait=False, cancel_futures=True)
                    raise
                done += item.size
                if time.monotonic() >= told_at + TELL_EVERY_S or item is wanted[-1][1]:
                    told_at = time.monotonic()
                    share = f"{done / max(1, total):.4f} {done / 1e6:.1f} of {total / 1e6:.1f} MB"
                    print(f"spotsup: progress {share}", flush=True)
    print(f"{len(items)} objects are there, {copied} of them copied by this run")


if __name__ == "__main__":
    main()
