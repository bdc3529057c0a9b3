"""What a further host of an installation gets from one that is there: configuration, secrets, the CA. Pure.

One JSON document, so that it can go from one host to the other through a pipe, without lying anywhere.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

from supervisor.config import Config
from supervisor.errors import UsageError
from supervisor.installation.answers import CA_FILE
from supervisor.installation.layout import ENVIRONMENT_FILE, ETC, KEY_FILE, STATE, TLS

CONFIG_FILE = ETC / "spotsupd.toml"
FORMAT = "spotsup-join-1"
MAX_BYTES = 1 << 20
_CA_KEY = TLS / "ca.key"


def joining_files(config: Config, *, etcd_here: bool) -> tuple[list[Path], list[Path]]:
    """The files that a further host needs, and those among them that a person has to copy: they lie where `init` makes
    no folder."""
    etcd = config.etcd
    named = [Path(each) for each in (etcd.ca, etcd.cert, etcd.key, etcd.password_file) if each]
    if etcd_here and etcd.ca == CA_FILE:
        named.append(_CA_KEY)
    ours = [each for each in named if each.parent in (STATE, TLS)]
    others = [each for each in named if each not in ours]
    return [CONFIG_FILE, ENVIRONMENT_FILE, KEY_FILE, *ours], others


def pack(files: Mapping[Path, bytes]) -> str:
    """The document. It has secrets."""
    encoded = {str(path): base64.b64encode(data).decode() for path, data in files.items()}
    return json.dumps({"format": FORMAT, "files": encoded}, indent=1) + "\n"


def unpack(document: bytes) -> dict[Path, bytes]:
    """The files. Raises UsageError where it is no such document, or names a file that `init` does not make."""
    if not document.strip():
        raise UsageError("--join got nothing: the command before the pipe has failed")
    try:
        decoded = json.loads(document)
        if decoded["format"] != FORMAT:
            raise ValueError(f"its format is {decoded['format']!r}, not {FORMAT!r}")
        found = {Path(path): base64.b64decode(text, validate=True) for path, text in decoded["files"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"--join did not get what `spotsupd join-file` prints ({error})") from error
    for path in found:
        if path not in (CONFIG_FILE, ENVIRONMENT_FILE) and (path.parent not in (STATE, TLS) or path.name[0] == "."):
            raise UsageError(f"--join got {path}, which is no file of an installation: nothing was made")
    if missing := {CONFIG_FILE, KEY_FILE} - {*found}:
        raise UsageError(f"--join got no {' and no '.join(sorted(map(str, missing)))}: nothing was made")
    return found
