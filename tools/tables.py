"""Writes the events of docs/glossary.md and the metrics of docs/monitoring.md from the code: `make docs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from supervisor.budget import Budgets
from supervisor.events import EventKind
from supervisor.journal.journal import Reading
from supervisor.metrics.families import families
from supervisor.metrics.observer import Observer
from supervisor.metrics.picture import Picture
from supervisor.runtime.loop import Status
from tools.stack import ROOT
from tools.states import put

GLOSSARY, MONITORING = ROOT / "docs" / "glossary.md", ROOT / "docs" / "monitoring.md"
_ENDINGS = {"counter": "_total", "info": "_info"}


class _Nothing:
    """A journal without a job, which nobody leads."""

    reading = Reading(MappingProxyType({}), (), 0, live=True, unreadable={}, cluster=None)

    def read(self) -> Reading:
        return self.reading

    def lease_valid(self) -> bool:
        return False


def events() -> str:
    """Return a row for each kind of event."""
    rows = [f"| `{each}`{' *' if each.alert else ''} | {each.means} |" for each in EventKind]
    return "\n".join(["", "| event | meaning |", "|---|---|", *rows, ""])


def metrics() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return each metric that a leader exports, by its name: its text and its labels."""
    return {f"{each.name}{_ENDINGS.get(each.type, '')}": (each.documentation, labels) for each, labels in _families()}


def written() -> dict[Path, str]:
    """Return the documents as the code has them."""
    return {
        GLOSSARY: put(GLOSSARY.read_text(encoding="utf-8"), "events", events()),
        MONITORING: put(MONITORING.read_text(encoding="utf-8"), "metrics", _table()),
    }


def _table() -> str:
    rows = [
        f"| `{name}` | {', '.join(f'`{each}`' for each in labels)} | {text} |"
        for name, (text, labels) in metrics().items()
    ]
    return "\n".join(["", "| metric | labels | |", "|---|---|---|", *rows, ""])


def _families() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    nothing = _Nothing()
    picture = Picture(0.0, "", nothing.reading, Status(0.0, "", {}, {}), leading=True, budgets=Budgets(1.0))
    for each in families(picture):
        of_samples = [label for sample in each.samples for label in sample.labels]
        yield each, tuple(dict.fromkeys([*getattr(each, "_labelnames", ()), *of_samples]))
    for counted in vars(Observer(nothing, nothing)).values():
        if isinstance(counted, MetricWrapperBase):
            (described,) = counted.describe()
            yield described, tuple(counted._labelnames)  # noqa: SLF001 - they have no other name


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
