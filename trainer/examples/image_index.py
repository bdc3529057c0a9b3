"""The names of all images below a folder, kept in a file, so that not every start walks the tree.

A walk of ImageNet's 1.28 million files takes minutes on a file system of the network. An index is stale once a folder
was added, removed or changed: a file that comes or goes changes its folder's time. To renew it by hand, delete the
file. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FORMAT = 1
BESIDE = ".image-index.json"
SETTLED_NS = 3 * 10**9


def images_of(root: Path, suffixes: Iterable[str], kept_in: Path | None = None) -> dict[str, list[str]]:
    """Class -> its images, as paths below the class's folder. Both in the order of their names.

    Read from the first index that is whole and not stale, else from the tree; then the first process of each machine
    writes the index. `kept_in`: a folder for it. Default: `root` itself, and where that cannot be written, ~/.cache.
    """
    endings = tuple(sorted(suffixes))
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    places = list(_places(root, kept_in))
    for place in places:
        if (found := _read(place, root, classes, endings)) is not None:
            return found
    images, times = _walk(root, classes, endings)
    # Times of folders may be whole seconds: while files arrive, a later one could have the same time.
    settled = max(times.values(), default=0) < time.time_ns() - SETTLED_NS
    if settled and os.environ.get("LOCAL_RANK", "0") == "0":
        _write(places, {"suffixes": endings, "times": times, "images": images})
    return images


def _places(root: Path, kept_in: Path | None) -> Iterator[Path]:
    name = f"images-{hashlib.sha256(os.fsencode(root.absolute())).hexdigest()[:16]}.json"
    if kept_in is not None:
        yield kept_in / name
        return
    yield root / BESIDE
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "image-index" / name


def _read(place: Path, root: Path, classes: list[str], endings: tuple[str, ...]) -> dict[str, list[str]] | None:
    """Return the images by an index; None if there is none, or it is torn, stale or of another kind."""
    try:
        head, _, body = place.read_bytes().partition(b"\n")
        if head.decode() != _head(body):
            return None
        index = json.loads(body)
        times, images = index["times"], index["images"]
        if (index["suffixes"], sorted(images)) != (list(endings), classes):
            return None
        if any((root / folder).stat().st_mtime_ns != time for folder, time in times.items()):
            return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    # not in the order of the file: every machine must have the same one
    return {name: images[name] for name in classes}


def _walk(root: Path, classes: list[str], endings: tuple[str, ...]) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Return the images of each class, and when each folder was changed last."""
    images: dict[str, list[str]] = {}
    times: dict[str, int] = {}
    for name in classes:
        found, folders = [], [""]
        while folders:
            below = folders.pop()
            folder = root / name / below
            # before it is listed: what comes later makes the index stale
            times[str(folder.relative_to(root))] = folder.stat().st_mtime_ns
            for entry in os.scandir(folder):
                path = f"{below}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{path}/")
                elif Path(path).suffix.lower() in endings:
                    found.append(path)
        images[name] = sorted(found, key=lambda path: path.split("/"))
    return images, times


def _write(places: list[Path], index: dict[str, Any]) -> None:
    """To the first place that can be written, whole or not at all. Nowhere: the next start walks the tree again."""
    body = json.dumps(index, separators=(",", ":")).encode()
    for place in places:
        part = place.with_name(f"{place.name}.{os.uname().nodename}.part")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(_head(body).encode() + b"\n" + body)
            part.replace(place)
        except OSError:
            continue
        return


def _head(body: bytes) -> str:
    """Return the first line: by it a file is known to be whole."""
    return json.dumps({"format": FORMAT, "sha256": hashlib.sha256(body).hexdigest()})
