"""What a further host of an installation gets from one that is there: configuration, secrets, the CA. Pure.

One JSON document, so that it can go from one host to the other through a pipe, without lying anywhere.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

from supervisor.config import Config
from supervisor.errors import StartError, UsageError
from supervisor.installation.answers import CA_FILE
from supervisor.installation.layout import ENVIRONMENT_FILE, ETC, KEY_FILE, STATE, TLS
from supervisor.journal.ca_rotation import CaState

CONFIG_FILE = ETC / "spotsupd.toml"
FORMAT = "spotsup-join-1"
MAX_BYTES = 1 << 20
_CA, _CA_KEY = Path(CA_FILE), TLS / "ca.key"
# Of another CA that is about to take over (journal/ca_rotation.py).
NEXT_CA = (TLS / "next-ca.crt", TLS / "next-ca.key")
CA_FILES = (_CA, _CA_KEY, *NEXT_CA)


def joining_files(config: Config, *, etcd_here: bool) -> tuple[list[Path], list[Path]]:
    """The files that a further host needs, and those among them that a person has to copy: they lie where `init` makes
    no folder. Those of `NEXT_CA` exist only while a CA is replaced."""
    etcd = config.etcd
    named = [Path(each) for each in (etcd.ca, etcd.cert, etcd.key, etcd.password_file) if each]
    if etcd_here and etcd.ca == CA_FILE:
        named += [_CA_KEY, *NEXT_CA]
    ours = [each for each in named if each.parent in (STATE, TLS)]
    others = [each for each in named if each not in ours]
    return [CONFIG_FILE, ENVIRONMENT_FILE, KEY_FILE, *ours], others


def outdated(given: Mapping[Path, bytes], there: Mapping[Path, bytes]) -> frozenset[Path]:
    """What another host gives, beside what is here. Returns what is here and there no more: a CA was replaced while
    this host was away. Raises StartError where nothing may be taken."""
    another = (
        "nothing was made: {} of this host is another one, so it belongs to another installation. Is that over? Then "
        "do what docs/install.md#remove says first"
    )
    if there.get(KEY_FILE, given[KEY_FILE]) != given[KEY_FILE]:
        raise StartError(another.format(KEY_FILE))
    if _CA not in given or _CA not in there:
        return frozenset()
    try:
        ours, theirs = (CaState.of(each[_CA], each.get(_CA_KEY)) for each in (there, given))
    except ValueError as error:
        raise StartError(f"nothing was made: a CA of this host or of the other one is damaged ({error})") from error
    if KEY_FILE not in there and not ours.cas & theirs.cas:
        raise StartError(another.format(_CA))
    if theirs.age < ours.age:
        raise StartError(
            f"nothing was made: {_CA} of this host is newer than that of the other one. Give it to the other one: run "
            "`spotsupd join-file` here, and `spotsupd init --join -` there"
        )
    return frozenset(path for path in NEXT_CA if path in there and path not in given and theirs.age > ours.age)


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
