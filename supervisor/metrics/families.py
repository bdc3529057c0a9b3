"""From a picture of the daemon to samples. Pure.

Names of live jobs, of clouds and of budgets are the only labels whose values users choose. What concerns jobs is
exported by the leader only, so that sums over several daemons count nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from supervisor.metrics.jobs import job_families
from supervisor.metrics.money import money_families
from supervisor.metrics.observer import MAX_POOLS, POOL_LABELS
from supervisor.metrics.picture import Picture
from supervisor.model import JobState, NodeState
from supervisor.pool_days import is_held, pool_of

OPEN_NODE_STATES = tuple(state for state in NodeState if state is not NodeState.GONE)


def families(picture: Picture) -> Iterator[Metric]:
    """Yield all metrics that are read from the picture."""
    yield from _daemon(picture)
    yield from _threads(picture)
    if picture.leading:
        yield from _cluster(picture)
        yield from job_families(picture)
        yield from money_families(picture)


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return GaugeMetricFamily(name, text, value=value)


def _daemon(picture: Picture) -> Iterator[Metric]:
    reading, status = picture.reading, picture.status
    yield InfoMetricFamily("spotsup_build", "Version of the daemon.", value={"version": picture.version})
    yield gauge("spotsup_leading", "1 on the daemon that leads, 0 on a standby.", float(picture.leading))
    yield gauge("spotsup_paused", "1 while a user has paused the daemons.", float(reading.pause is not None))
    yield gauge("spotsup_last_tick_timestamp_seconds", "When the daemon last decided, in UNIX seconds.", status.at)
    yield gauge("spotsup_etcd_up", "1 while etcd answers this daemon.", float(reading.live))
    away_s = max(0.0, picture.now - status.etcd_away_since) if status.etcd_away_since else 0.0
    yield gauge("spotsup_etcd_away_seconds", "For how long etcd has not answered; 0 while it does.", away_s)
    outages = "How often etcd has stopped answering since this daemon started."
    yield CounterMetricFamily("spotsup_etcd_outages", outages, value=reading.outages)
    yield gauge("spotsup_etcd_revision", "The revision of etcd that this daemon has seen.", float(reading.revision))
    counts = CounterMetricFamily(
        "spotsup_loop", "What the loop and its actions did, by name: commits, ticks_failed, …", labels=["what"]
    )
    for what, count in sorted(status.counters.items()):
        counts.add_metric([what], count)
    yield counts


def _threads(picture: Picture) -> Iterator[Metric]:
    stalled = GaugeMetricFamily(
        "spotsup_thread_stalled_seconds", "For how long a part with work to do made no progress.", labels=["part"]
    )
    faults = CounterMetricFamily(
        "spotsup_thread_faults", "Unforeseen errors that a part has outlived.", labels=["part"]
    )
    for name, part in sorted(picture.parts.items()):
        stalled.add_metric([name], part.stalled_s)
        faults.add_metric([name], part.faults)
    yield stalled
    yield faults
    waits = GaugeMetricFamily(
        "spotsup_action_wait_seconds", "How long the oldest action of a kind has waited for a thread.", labels=["kind"]
    )
    for kind, wait_s in sorted(picture.waits_s.items()):
        waits.add_metric([kind], wait_s)
    yield waits


def _cluster(picture: Picture) -> Iterator[Metric]:
    reading, views = picture.reading, picture.reading.jobs.values()
    by_state = _counted((str(view.record.state) for view in views), map(str, JobState))
    jobs = GaugeMetricFamily("spotsup_jobs", "Jobs by state.", labels=["state"])
    for state, count in by_state.items():
        jobs.add_metric([state], count)
    yield jobs
    places = [found for view in views if (found := picture.status.admissions.get(view.name)) and found.place]
    yield gauge("spotsup_queue_jobs", "Jobs that wait for what the operator's limits leave.", len(places))
    waiting = [view.record.state_since for view in views if view.record.state is JobState.QUEUED]
    longest_s = max((picture.now - since for since in waiting), default=0.0)
    yield gauge("spotsup_queue_longest_wait_seconds", "Since when the longest waiting job is queued.", longest_s)
    yield _nodes(picture)
    yield _pools(picture)
    unread = "Records and messages in etcd that this daemon cannot read, and leaves alone."
    yield gauge("spotsup_unreadable", unread, len(reading.refused) + len(reading.unreadable))
    yield gauge("spotsup_alerts_waiting", "Alerts that are not delivered yet.", len(reading.alerts))


def _nodes(picture: Picture) -> Metric:
    nodes = GaugeMetricFamily(
        "spotsup_nodes", "Nodes that are not gone, by state.", labels=["cloud", "market", "state"]
    )
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for view in picture.reading.jobs.values():
        for node in view.nodes.values():
            if node.state is NodeState.GONE:
                continue
            key = (node.offer.cloud, str(node.offer.market))
            states = counts.setdefault(key, dict.fromkeys(map(str, OPEN_NODE_STATES), 0))
            states[str(node.state)] += 1
    for (cloud, market), states in sorted(counts.items()):
        for state, count in states.items():
            nodes.add_metric([cloud, market, state], count)
    return nodes


def _pools(picture: Picture) -> Metric:
    """Return the metric of those in which most machines are."""
    found = Counter(
        pool_of(node.offer) for view in picture.reading.jobs.values() for node in view.nodes.values() if is_held(node)
    )
    held = GaugeMetricFamily("spotsup_pool_nodes", "Machines that are held of a pool.", labels=POOL_LABELS)
    for pool, count in found.most_common(MAX_POOLS):
        held.add_metric([pool.cloud, pool.zone, pool.instance_type, pool.market], count)
    return held


def _counted(found: Iterable[str], known: Iterable[str]) -> dict[str, int]:
    counts = dict.fromkeys(known, 0)
    for each in found:
        counts[each] += 1
    return counts
