"""A data job: copy a bucket's objects to a file system, one folder per class, and go on where the last run stopped.

    kind: data
    code: trainer/examples
    run: python copy_bucket.py --bucket https://my-bucket.s3.us-east-1.amazonaws.com --prefix train/ --out /mnt/data

Standard library only: it lists and reads what S3 shows to everybody (ListObjectsV2), as other stores do, too. For a
private bucket, put your own client (boto3, google-cloud-storage, azure-storage-blob) in the place of `Bucket`.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

TIMEOUT_S = 60.0
TRIES = 5
TELL_EVERY_S = 1.0
PART = ".copy_bucket-part"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Item:
    """One object: its key, and its size in bytes."""

    key: str
    size: int


class Bucket:
    """What a store shows over HTTP. `url`: the bucket's own address."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("https://", "http://")):
            raise SystemExit(f"{url} is no bucket's address; write https://…")
        self._url = url.rstrip("/")

    def list(self, prefix: str) -> Iterator[Item]:
        """All objects below a prefix, a thousand per request."""
        token = ""
        while True:
            query = {"list-type": "2", "prefix": prefix, **({"continuation-token": token} if token else {})}
            page = _patiently(partial(self._page, query), f"{self._url} cannot be listed")
            for each in page.findall("{*}Contents"):
                yield Item(each.findtext("{*}Key", ""), int(each.findtext("{*}Size", "0")))
            token = page.findtext("{*}NextContinuationToken", "")
            if not token:
                return

    def copy(self, item: Item, place: Path) -> None:
        """The object at `place`, complete or not at all."""
        place.parent.mkdir(parents=True, exist_ok=True)
        # A machine that is cut off may still copy the same object: each writes a file of its own.
        part = place.with_name(f".{uuid.uuid4().hex}{PART}")
        _patiently(lambda: self._fetch(item, part), f"{item.key} cannot be copied")
        part.replace(place)

    def _fetch(self, item: Item, part: Path) -> None:
        with self._open(f"/{quote(item.key)}") as source, part.open("wb") as file:
            shutil.copyfileobj(source, file)
        if part.stat().st_size != item.size:
            raise OSError(f"{part.stat().st_size} bytes came, {item.size} were listed")

    def _page(self, query: dict[str, str]) -> ET.Element:
        with self._open(f"/?{urlencode(query)}") as answer:
            return ET.fromstring(answer.read())  # noqa: S314 - it comes from the store that the data come from

    def _open(self, path: str) -> Any:
        return urllib.request.urlopen(self._url + path, timeout=TIMEOUT_S)  # noqa: S310 - http, as `url` was checked


def _patiently(act: Callable[[], Result], trouble: str) -> Result:
    """What `act` returns, tried a few times. Raises SystemExit with one sentence."""
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


def places(items: Sequence[Item], prefix: str, out: Path) -> dict[Path, Item]:
    """Where each goes. Raises SystemExit where two would be one file."""
    found: dict[Path, Item] = {}
    for item in items:
        place = place_of(item.key, prefix, out)
        if (other := found.setdefault(place, item)) is not item:
            raise SystemExit(f"{other.key!r} and {item.key!r} would both be {place}; rearrange them otherwise")
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Copy missing files, and print the progress."""
    parser = argparse.ArgumentParser(description="Copy a bucket to a file system, rearranged; may be run again.")
    parser.add_argument("--bucket", required=True, help="the bucket's own address")
    parser.add_argument("--prefix", default="", help="only keys that begin so")
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args(argv)
    bucket = Bucket(options.bucket)
    items = [item for item in bucket.list(options.prefix) if not item.key.endswith("/")]
    total, done, copied, told_at = sum(item.size for item in items), 0, 0, 0.0
    wanted = places(items, options.prefix, options.out)
    for left in options.out.rglob(f".*{PART}"):  # by a run that was ended
        left.unlink(missing_ok=True)
    for place, item in wanted.items():
        if not place.is_file() or place.stat().st_size != item.size:
            bucket.copy(item, place)
            copied += 1
        done += item.size
        if time.monotonic() >= told_at + TELL_EVERY_S or item is items[-1]:
            told_at = time.monotonic()
            print(f"spotsup: progress {done / max(1, total):.4f} {done / 1e6:.1f} of {total / 1e6:.1f} MB", flush=True)
    print(f"{len(items)} objects are there, {copied} of them copied by this run")


if __name__ == "__main__":
    main()
