"""The text that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from supervisor.metrics.families import families
from supervisor.metrics.observer import Observer
from supervisor.metrics.picture import Picture

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class _FromPicture(Collector):
    """Asks for a picture at each scrape."""

    def __init__(self, picture: Callable[[], Picture]) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        return families(self._picture())

    def describe(self) -> Iterator[Metric]:
        """None: otherwise it would be collected when it is registered."""
        return iter(())


class Exporter:
    """All metrics as text, on any thread."""

    def __init__(self, observer: Observer, picture: Callable[[], Picture]) -> None:
        """`picture`: the daemon as it is now."""
        self.observer = observer
        self._registries = (CollectorRegistry(), observer.registry)
        self._registries[0].register(_FromPicture(picture))

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format 0.0.4."""
        return b"".join(map(generate_latest, self._registries))
