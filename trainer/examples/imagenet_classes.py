"""The classes of ImageNet's validation images, which come in one folder, from any of the files that name them. Standard
library only.

- LOC_val_solution.csv, of the competition on Kaggle: `ILSVRC2012_val_00000001,n01751748 111 108 370 298`.
- A file of 50,000 lines with a WordNet id each, in the order of the images, such as TensorFlow's
  imagenet_2012_validation_synset_labels.txt.
- ILSVRC2012_validation_ground_truth.txt of the development kit, 50,000 lines with a number each, and the kit's
  meta.mat, which says whose number it is. Lists of classes in another order (Caffe's synsets.txt) would give other
  classes, and no error; they are not taken.
"""

from __future__ import annotations

import csv
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

WNID = re.compile(r"n\d{8}")
IMAGE = "ILSVRC2012_val_{:08d}"

# MATLAB, "MAT-File Format", chapter 1: Level 5.
_HEADER_BYTES = 128
_COMPRESSED, _MATRIX = 15, 14
_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_CHARACTERS = {2: "latin-1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le"}
_STRUCT, _CHAR = 2, 4


def classes_of(labels: Path, meta: Path | None = None) -> dict[str, str]:
    """Name of an image, without its suffix -> WordNet id. Raises SystemExit with one sentence."""
    try:
        lines = [line.strip() for line in labels.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise SystemExit(f"{labels} cannot be read: {error}") from error
    if labels.suffix == ".csv":
        rows = list(csv.reader(lines[1:]))
        found = {row[0]: row[1].split()[0] for row in rows if len(row) > 1 and row[1].split()}
    elif lines and all(line.isdigit() for line in lines):
        if meta is None:
            raise SystemExit(f"{labels} has numbers: name the development kit's meta.mat, which explains them (--meta)")
        names = synsets_of(meta)
        if unknown := {int(line) for line in lines} - names.keys():
            raise SystemExit(f"{meta} has no class {min(unknown)}, which is in {labels}")
        found = {IMAGE.format(number): names[int(line)] for number, line in enumerate(lines, 1)}
    else:
        found = {IMAGE.format(number): line for number, line in enumerate(lines, 1)}
    if wrong := next((name for name in found.values() if not WNID.fullmatch(name)), "" if found else "nothing"):
        raise SystemExit(f"{labels} has {wrong[:40]!r} where a WordNet id such as n01440764 was expected")
    return found


def synsets_of(meta: Path) -> dict[int, str]:
    """ILSVRC2012_ID -> WordNet id, of the struct array `synsets` in meta.mat. Raises SystemExit."""
    try:
        data = meta.read_bytes()[_HEADER_BYTES:]
        for kind, body in _elements(data):
            whole = next(_elements(zlib.decompress(body))) if kind == _COMPRESSED else (kind, body)
            rows = _structs(whole[1]) if whole[0] == _MATRIX else []
            found = {
                int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in rows if {"ILSVRC2012_ID", "WNID"} <= row.keys()
            }
            if found:
                return found
        problem = "it has no synsets"
    except (OSError, ValueError, KeyError, IndexError, struct.error, zlib.error, StopIteration) as error:
        problem = str(error) or type(error).__name__
    raise SystemExit(f"{meta} is not the meta.mat of ImageNet's development kit: {problem}")


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the data elements of a buffer: type and content. Each begins at a multiple of 8 bytes, except compressed
    ones."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:  # a small element: its content is where others have their size
            yield kind & 0xFFFF, data[at + 4 : at + 4 + (kind >> 16)]
            at += 8
            continue
        yield kind, data[at + 8 : at + 8 + size]
        at += 8 + size + (0 if kind == _COMPRESSED else -size % 8)


def _structs(matrix: bytes) -> list[Mapping[str, Any]]:
    """Return the elements of a struct array as dictionaries; no others."""
    parts = [*_elements(matrix)]
    if not parts or _class(parts) != _STRUCT:
        return []
    length = struct.unpack("<i", parts[3][1])[0]
    names = [parts[4][1][at : at + length].split(b"\0")[0].decode() for at in range(0, len(parts[4][1]), length)]
    values = [_value(body) for _, body in parts[5:]]
    return [dict(zip(names, values[at : at + len(names)], strict=True)) for at in range(0, len(values), len(names))]


def _value(matrix: bytes) -> Any:
    """Return the text of a char array; the first number of a numeric one; None for anything else."""
    parts = [*_elements(matrix)]
    if len(parts) < 4:
        return None
    kind, body = parts[3]
    if _class(parts) == _CHAR:
        return body.decode(_CHARACTERS[kind])
    form = _NUMBERS.get(kind)
    return struct.unpack_from(f"<{form}", body)[0] if form and body else None


def _class(parts: list[tuple[int, bytes]]) -> int:
    """Return the class of an array, from its flags."""
    return int(parts[0][1][0])
