"""What a launcher notes on its node while it prepares: for its agent, which publishes it, and for the next launcher."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from spotsup_trainer.worker_files import replace_file

_PREPARING = "preparing"
_LEFT_OUT = "left-out.json"
_MAX_CHARACTERS = 100


class Preparation:
    """The files below a run folder; without one it notes nothing. It raises no OSError: a full disk stops nothing."""

    def __init__(self, folder: str | Path | None) -> None:
        self._folder = Path(folder) if folder else None

    def importing(self, module: str) -> None:
        """Take note that the launcher begins to import a module."""
        self._write(_PREPARING, f"importing {module}"[:_MAX_CHARACTERS].encode())

    def ended(self, left_out: dict[str, str]) -> None:
        """Take note that it is over: these modules were left out, and why."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / _PREPARING).unlink(missing_ok=True)
        if left_out:
            self._write(_LEFT_OUT, json.dumps(left_out).encode())

    def left_out(self) -> dict[str, str]:
        """Return what an earlier launcher on this node has left out, so that it is not tried again."""
        try:
            found = json.loads((self._folder / _LEFT_OUT).read_bytes()) if self._folder else {}
        except (OSError, ValueError):
            return {}
        return {str(module): str(why) for module, why in found.items()} if isinstance(found, dict) else {}

    def current(self) -> str:
        """Return what the launcher does now, "" where it does not prepare."""
        try:
            return (self._folder / _PREPARING).read_text(errors="replace")[:_MAX_CHARACTERS] if self._folder else ""
        except OSError:
            return ""

    def _write(self, name: str, content: bytes) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                replace_file(self._folder / name, content)
