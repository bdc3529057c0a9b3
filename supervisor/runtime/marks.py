"""How new the journal was when this daemon last saw it: kept outside etcd, since it is etcd that may be put back."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import structlog

from supervisor.model import ClusterRecord
from supervisor.planner.continuity import Mark

# A journal that is put back by less than what is written in so long may go unnoticed after a crash of the daemon.
SAVE_S = 1.0

log = structlog.get_logger("spotsupd")


class MarkStore(Protocol):
    """Where a mark outlives its daemon."""

    def load(self) -> Mark | None:
        """Return what was last saved; None without it."""
        ...

    def save(self, mark: Mark) -> None:
        """Replace it."""
        ...


class MarkFile:
    """A file in the daemon's state folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Mark | None:
        """As the protocol says. What cannot be read says nothing."""
        try:
            found = json.loads(self._path.read_text())
            return Mark(float(found["begun_at"]), int(found["epoch"]), int(found["beat"]), int(found["revision"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("it is not known how new the journal has to be", file=str(self._path), error=str(error))
            return None

    def save(self, mark: Mark) -> None:
        """As the protocol says; at once or not at all. A full disk ends nothing: the mark is then an older one."""
        new = self._path.with_suffix(".new")
        try:
            new.write_text(json.dumps(asdict(mark)))
            new.replace(self._path)
        except OSError as error:
            log.warning("it cannot be kept how new the journal is", file=str(self._path), error=str(error))


class Continuity:
    """Whether the journal is the one that this daemon knows: by its key, and by what it has seen of it, also in an
    earlier life."""

    def __init__(self, key_mark: str = "", store: MarkStore | None = None) -> None:
        """`key_mark`: of the cluster's key, which all its daemons share (`identity.Identity.mark`); "" where any will
        do. `store`: None where only this life counts."""
        self.key_mark = key_mark
        self._store = store
        self.newest = self._saved = store.load() if store else None  # None if no journal was ever seen
        self._saved_at = 0.0

    def refusal(self, cluster: ClusterRecord) -> str:
        """Return why the journal is none of this daemon's, or ""."""
        if self.key_mark and cluster.key_mark not in {"", self.key_mark}:
            return "this daemon's cluster.key is not the cluster's: copy it from the state folder of another daemon"
        return ""

    def see(self, mark: Mark, now: float) -> bool:
        """Take note of a mark. False if the journal is older than what was seen of it before."""
        if self.newest is not None and mark < self.newest:
            return False
        self.newest = mark
        if mark != self._saved and not 0 <= now - self._saved_at < SAVE_S:
            self.begin(mark)
            self._saved_at = now
        return True

    def begin(self, mark: Mark) -> None:
        """Begin anew with a mark, whatever was seen before."""
        self.newest = self._saved = mark
        if self._store is not None:
            self._store.save(mark)
