"""Writes monitoring/grafana-dashboard.json from the panels below: `make docs`. A test compares them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tools.stack import ROOT

FILE = ROOT / "monitoring" / "grafana-dashboard.json"
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${source}"}
JOBS = 'spotsup_job=~"$job"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel."""

    title: str
    queries: Sequence[tuple[str, str]]  # (PromQL, legend)
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    about: str = ""


def quantiles(metric: str, by: str, share: float) -> str:
    """Return a quantile of a histogram, of the last quarter of an hour or of what is on the screen."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))"


def stat(title: str, query: str, unit: str = "short") -> Panel:
    """Return one number."""
    return Panel(title, [(query, "")], unit, "stat", 4)


def of_nodes(title: str, query: str, unit: str = "percentunit") -> Panel:
    """Return a curve for each node, of the metrics of its exporter."""
    asked = query.replace("JOBS", JOBS).replace("RATE", "$__rate_interval")
    return Panel(title, [(asked, "{{spotsup_node}}")], unit)


ROWS: dict[str, Sequence[Panel]] = {
    "Now": (
        stat("Jobs that train", 'sum(spotsup_jobs{state=~"running|degraded"})'),
        stat("Nodes that train", 'sum(spotsup_nodes{state="member"})'),
        stat("Goodput", "avg(spotsup_job_goodput_ratio)", "percentunit"),
        stat("Spending per hour", "sum(spotsup_usd_per_hour)", "currencyUSD"),
        stat("Spent this month", "sum(spotsup_month_usd)", "currencyUSD"),
        stat("Jobs in the queue", "sum(spotsup_queue_jobs)"),
    ),
    "Jobs": (
        Panel(
            "Nodes in the round",
            [
                (f"spotsup_job_nodes_training{{{JOBS}}}", "{{spotsup_job}}"),
                (f"spotsup_job_nodes_desired{{{JOBS}}}", "{{spotsup_job}} wants"),
            ],
        ),
        Panel("Steps per second", [(f"deriv(spotsup_job_step{{{JOBS}}}[5m])", "{{spotsup_job}}")], "ops"),
        Panel("Loss", [(f"spotsup_job_loss{{{JOBS}}}", "{{spotsup_job}}")]),
        Panel(
            "Goodput",
            [(f"spotsup_job_goodput_ratio{{{JOBS}}}", "{{spotsup_job}}")],
            "percentunit",
            about="Share of paid time whose steps were made and kept.",
        ),
        Panel(
            "Since the last step",
            [(f"time() - spotsup_job_last_step_timestamp_seconds{{{JOBS}}}", "{{spotsup_job}}")],
            "s",
        ),
        Panel(
            "Steps since the last checkpoint",
            [(f"spotsup_job_step{{{JOBS}}} - spotsup_job_checkpoint_step{{{JOBS}}}", "{{spotsup_job}}")],
        ),
    ),
    "Pauses": (
        Panel(
            "Pauses, median by part",
            [(quantiles("spotsup_pause_seconds", "phase", 0.5), "{{phase}}")],
            "s",
            about="detect, checkpoint, agree, start, connect, restore, first_step; whole is their sum.",
        ),
        Panel(
            "Restored in an hour, by where from",
            [("sum by (source) (increase(spotsup_restored_bytes_total[1h]))", "{{source}}")],
            "bytes",
            about="own: memory of each rank's node. peers: other ranks, also what one of them read from storage.",
        ),
        Panel(
            "From notice to request",
            [
                (quantiles("spotsup_notice_to_request_seconds", "", 0.5), "median"),
                (quantiles("spotsup_notice_to_request_seconds", "", 0.95), "95 %"),
            ],
            "s",
        ),
        Panel("Start of a node, median", [(quantiles("spotsup_node_start_seconds", "phase", 0.5), "{{phase}}")], "s"),
    ),
    "Fleet": (
        Panel("Nodes by state", [("sum by (state) (spotsup_nodes)", "{{state}}")], stacked=True),
        Panel(
            "Machines by pool",
            [("sum by (zone, instance_type, market) (spotsup_pool_nodes)", "{{zone}} {{instance_type}} {{market}}")],
            stacked=True,
        ),
        Panel(
            "Interruptions per hour",
            [("sum by (cloud, kind) (rate(spotsup_interruptions_total[1h])) * 3600", "{{cloud}} {{kind}}")],
        ),
        Panel(
            "Granted requests by pool",
            [
                (
                    'sum by (zone, instance_type) (increase(spotsup_pool_answers_total{answer="granted"}[1h]))',
                    "{{zone}} {{instance_type}}",
                )
            ],
            width=12,
        ),
        Panel(
            "Refused requests by pool",
            [
                (
                    'sum by (zone, instance_type) (increase(spotsup_pool_answers_total{answer="refused"}[1h]))',
                    "{{zone}} {{instance_type}}",
                )
            ],
            width=12,
        ),
    ),
    "Nodes": (
        Panel(
            "GPUs busy",
            [(f"spotsup_job_gpu_use_ratio{{{JOBS}}}", "{{spotsup_job}}")],
            "percentunit",
            about="Of the node with rank 0.",
        ),
        of_nodes("CPUs busy", '1 - avg by (spotsup_node) (rate(node_cpu_seconds_total{mode="idle", JOBS}[RATE]))'),
        of_nodes("Memory in use", "1 - node_memory_MemAvailable_bytes{JOBS} / node_memory_MemTotal_bytes{JOBS}"),
        of_nodes("Network, sent", "sum by (spotsup_node) (rate(node_network_transmit_bytes_total{JOBS}[RATE]))", "Bps"),
        of_nodes("Disks, read", "sum by (spotsup_node) (rate(node_disk_read_bytes_total{JOBS}[RATE]))", "Bps"),
        of_nodes(
            "Disks, fullest",
            "1 - min by (spotsup_node) (node_filesystem_avail_bytes{JOBS} / node_filesystem_size_bytes{JOBS})",
        ),
    ),
    "Money": (
        Panel(
            "Dollars per hour by job",
            [(f"spotsup_job_usd_per_hour{{{JOBS}}}", "{{spotsup_job}}")],
            "currencyUSD",
            stacked=True,
        ),
        Panel(
            "What it was for",
            [(f"sum by (purpose) (spotsup_job_usd{{{JOBS}}})", "{{purpose}}")],
            "currencyUSD",
            stacked=True,
        ),
        Panel(
            "Budgets",
            [("spotsup_budget_spent_usd", "{{scope}}"), ("spotsup_budget_usd", "{{scope}} may spend")],
            "currencyUSD",
        ),
    ),
    "Daemon": (
        Panel(
            "Decisions",
            [
                (quantiles("spotsup_tick_seconds", "instance", 0.5), "{{instance}} median"),
                (quantiles("spotsup_tick_seconds", "instance", 0.99), "{{instance}} 99 %"),
            ],
            "s",
        ),
        Panel(
            "Leader and etcd",
            [("spotsup_leading", "{{instance}} leads"), ("spotsup_etcd_up", "{{instance}} hears etcd")],
        ),
        Panel("Parts without progress", [("spotsup_thread_stalled_seconds", "{{instance}} {{part}}")], "s"),
        Panel(
            "What the loop does, per second",
            [("sum by (what) (rate(spotsup_loop_total[5m]))", "{{what}}")],
            "ops",
            width=24,
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "title": "spotsup",
        "uid": "spotsup",
        "tags": ["spotsup"],
        "schemaVersion": 38,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "graphTooltip": 1,
        "templating": {"list": [_source(), _job()]},
        "panels": list(_panels()),
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _job() -> dict[str, Any]:
    query = "label_values(spotsup_job_state, spotsup_job)"
    return {
        "name": "job",
        "type": "query",
        "label": "Job",
        "datasource": SOURCE,
        "query": query,
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, panels in ROWS.items():
        number += 1
        yield {"id": number, "type": "row", "title": title, "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top}}
        top, left, height = top + 1, 0, 4 if panels[0].kind == "stat" else 8
        for panel in panels:
            number += 1
            if left + panel.width > COLUMNS:
                left, top = 0, top + height
            yield _panel(number, panel, {"h": height, "w": panel.width, "x": left, "y": top})
            left += panel.width
        top += height


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    custom: dict[str, Any] = {"lineWidth": 2, "fillOpacity": 25 if panel.stacked else 5, "showPoints": "never"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, **({"custom": custom} if panel.kind == "timeseries" else {})},
            "overrides": [],
        },
        "targets": [
            {"refId": chr(ord("A") + at), "expr": query, "legendFormat": legend, "datasource": SOURCE}
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }


def text() -> str:
    """Return the file's content."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
