"""The program that the daemon sends to a host: a zip of these modules, and what begins it."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_MODULES = (
    "__init__.py",
    "localcloud/__init__.py",
    "localcloud/machine/__init__.py",
    "localcloud/machine/child.py",
    "localcloud/machine/namespace.py",
    "localcloud/machine/spec.py",
    "localcloud/machine/sshd.py",
    "localcloud/processes.py",
    "localcloud/programs.py",
    "own/__init__.py",
    "own/host.py",
    "own/init.py",
)
_ROOM = Path(__file__).resolve().parents[1]
_BORN = (1980, 1, 1, 0, 0, 0)  # the same bytes from each daemon

_BY_HAND = """
import sys
from provisioners.own.host import by_hand
by_hand(sys.argv[0], sys.argv[1:])
"""

BEGIN = """
import sys
if sys.version_info < (3, 9):
    sys.exit("spotsup needs Python 3.9 or newer here, and this is %d.%d: set own.python" % sys.version_info[:2])
import json, os
head = json.loads(sys.stdin.buffer.readline())
body = sys.stdin.buffer.read()
root = os.path.expanduser(head["root"])
os.makedirs(root, 0o700, exist_ok=True)
path = os.path.join(root, "program-%s.zip" % head["sha256"][:16])
def kept():
    try:
        with open(path, "rb") as file:
            return file.read() == body
    except OSError:
        return False
if not kept():
    half = "%s.%s.%d" % (path, os.uname().nodename, os.getpid())
    with open(half, "wb") as file:
        file.write(body)
    os.replace(half, path)
sys.path.insert(0, path)
from provisioners.own.host import main
main(head["request"], root, path)
"""
"""What the host's interpreter runs: it keeps the program, and hands it the request."""

COMMAND = "import sys; exec(eval(sys.stdin.buffer.readline()))"
"""What the host's interpreter is started with: one line without anything that a shell, csh(1) too, would read."""


@cache
def program() -> bytes:
    """Return the zip."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as file:
        for each in _MODULES:
            file.writestr(zipfile.ZipInfo(f"provisioners/{each}", _BORN), (_ROOM / each).read_bytes())
        file.writestr(zipfile.ZipInfo("__main__.py", _BORN), _BY_HAND)
    return written.getvalue()


def sent(request: Mapping[str, Any], root: str) -> bytes:
    """Return what the host's interpreter gets on its standard input."""
    body = program()
    head = {"root": root, "sha256": hashlib.sha256(body).hexdigest(), "request": request}
    return f"{BEGIN!r}\n{json.dumps(head)}\n".encode() + body
