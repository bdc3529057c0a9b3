"""What `/metrics` says of a picture of the daemon, and that rules and panels ask for nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from spotsup_trainer.agent.host_metrics import exposition as host_metrics
from spotsup_trainer.wire import Pause, Pauses, Progress

from supervisor.api.nodes.targets import targets
from supervisor.billing import Booking, NodeBilling, Purpose
from supervisor.budget import Budgets
from supervisor.journal.journal import Reading
from supervisor.market.admission import Admission
from supervisor.metrics.export import Exporter
from supervisor.metrics.families import families
from supervisor.metrics.observer import MAX_POOLS, Observer
from supervisor.metrics.picture import MAX_JOBS, Picture
from supervisor.model import ClusterRecord, JobState, NodeRecord, NodeState, NoticeRecord, Transition
from supervisor.planner.world import JobView
from supervisor.runtime.loop import Status
from supervisor.runtime.supervision import PartHealth
from tests.unit.scene import NOW, OFFER, job, member, node, round_of, view
from tests.unit.test_docs import anchors
from tools import grafana, tables
from tools.stack import ROOT

DOCUMENT = ROOT / "docs" / "monitoring.md"
RULES = ROOT / "monitoring" / "alerts.yml"
STATUS = Status(NOW - 1, "watching 1 job", {}, {"commits": 7})
USEFUL = NodeBilling(Purpose.IDLE, booked_to=NOW, bookings=(Booking("1970-01", Purpose.USEFUL, 900.0, 0.1),))


def reading(*views: JobView, **changes: Any) -> Reading:
    jobs = MappingProxyType({each.record.name: each for each in views})
    found = Reading(jobs, (), 9, live=True, unreadable={}, cluster=ClusterRecord(0.0, "a"))
    return replace(found, **changes)


def training(**changes: Any) -> JobView:
    """A job of two nodes that trains."""
    progress = Progress(1, 40, NOW - 2, NOW - 40, loss=0.5, checkpoint_step=30, gpu_percent=87.5)
    return view(replace(job(), **changes), [member(1, billing=USEFUL), member(2)], progress=progress)


def picture(*views: JobView, **changes: Any) -> Picture:
    return replace(Picture(NOW, "1.2", reading(*views), STATUS, leading=True), **changes)


class Leads:
    """A leader election that is won."""

    valid = True

    def lease_valid(self) -> bool:
        return self.valid


class Mirror:
    """A journal that has what it is given."""

    def __init__(self, *views: JobView) -> None:
        self.reading = reading(*views)

    def show(self, *views: JobView, **changes: Any) -> None:
        self.reading = reading(*views, **changes)

    def read(self) -> Reading:
        return self.reading


def samples(found: Picture, observer: Observer | None = None) -> dict[str, float]:
    """By name and labels, as Prometheus reads the text."""
    text = Exporter(observer or Observer(Mirror(), Leads()), lambda: found).text().decode()
    return {
        each.name + "".join(f" {key}={value}" for key, value in sorted(each.labels.items())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


# -- of a picture ----------------------------------------------------------------------------------------------


def test_a_job_that_trains_has_its_state_nodes_progress_and_cost() -> None:
    found = samples(picture(training()))
    assert found["spotsup_jobs state=running"] == 1
    assert found["spotsup_job_state spotsup_job=job state=running"] == 1
    assert found["spotsup_job_state spotsup_job=job state=waiting"] == 0
    assert found["spotsup_nodes cloud=local market=spot state=member"] == 2
    assert found["spotsup_job_nodes_training spotsup_job=job"] == 2
    assert found["spotsup_job_step spotsup_job=job"] == 40
    assert found["spotsup_job_loss spotsup_job=job"] == 0.5
    assert found["spotsup_job_gpu_use_ratio spotsup_job=job"] == 0.875
    assert found["spotsup_job_last_step_timestamp_seconds spotsup_job=job"] == NOW - 2
    assert found["spotsup_job_usd purpose=useful spotsup_job=job"] >= 0.1
    assert found["spotsup_usd_per_hour"] == found["spotsup_job_usd_per_hour spotsup_job=job"] == 1.0
    assert found["spotsup_pool_nodes cloud=local instance_type=small market=spot zone=zone-a"] == 2
    assert 0 < found["spotsup_job_goodput_ratio spotsup_job=job"] <= 1
    assert found["spotsup_loop_total what=commits"] == 7


def test_the_sum_over_purposes_is_what_the_job_has_cost() -> None:
    found = samples(picture(training()))
    purposes = [value for key, value in found.items() if key.startswith("spotsup_job_usd ")]
    assert len(purposes) == len(Purpose)
    assert sum(purposes) == pytest.approx(sum(each.usd(NOW) for each in training().nodes.values()))


def test_a_standby_exports_only_how_it_is() -> None:
    found = samples(picture(training(), leading=False))
    assert found["spotsup_leading"] == 0
    assert found["spotsup_etcd_up"] == 1
    assert not any("spotsup_job" in key or "spotsup_nodes" in key or "usd" in key for key in found)


def test_etcd_that_is_away_parts_that_stall_and_a_pause_are_seen() -> None:
    away = replace(STATUS, etcd_away_since=NOW - 30)
    parts = {"mirror": PartHealth(12.0, 3)}
    found = samples(picture(reading=reading(live=False, outages=2), status=away, parts=parts))
    assert (found["spotsup_etcd_up"], found["spotsup_etcd_away_seconds"]) == (0, 30)
    assert found["spotsup_etcd_outages_total"] == 2
    assert found["spotsup_thread_stalled_seconds part=mirror"] == 12
    assert found["spotsup_thread_faults_total part=mirror"] == 3


def test_a_job_that_has_ended_has_no_samples_of_its_own_and_counts() -> None:
    found = samples(picture(training(state=JobState.SUCCEEDED, ended_at=NOW - 1)))
    assert found["spotsup_jobs state=succeeded"] == 1
    assert not any("spotsup_job=" in key for key in found)


def test_of_very_many_jobs_the_newest_have_samples() -> None:
    views = [view(replace(job(), name=f"job{n}", submitted_at=NOW + n), []) for n in range(MAX_JOBS + 1)]
    found = samples(picture(*views))
    assert "spotsup_job_round spotsup_job=job1" in found
    assert "spotsup_job_round spotsup_job=job0" not in found
    assert found["spotsup_jobs state=running"] == MAX_JOBS + 1


def test_budgets_and_the_queue_are_exported() -> None:
    waits = view(replace(job(state=JobState.QUEUED, state_since=NOW - 60), name="waits"), [])
    status = replace(STATUS, admissions={"waits": Admission(0, place=1, reason="full")})
    found = samples(picture(training(owner="ann"), waits, status=status, budgets=Budgets(100.0, 50.0)))
    assert found["spotsup_budget_usd scope=cluster"] == 100
    assert found["spotsup_budget_usd scope=user ann"] == 50
    assert found["spotsup_budget_spent_usd scope=cluster"] == pytest.approx(found["spotsup_month_usd"])
    assert (found["spotsup_queue_jobs"], found["spotsup_queue_longest_wait_seconds"]) == (1, 60)


def test_a_hostile_owner_stays_one_label() -> None:
    hostile = 'ann"} 7\nspotsup_leading 0\n\\'
    found = samples(picture(training(owner=hostile), budgets=Budgets(user_usd_per_month=5.0)))
    assert found["spotsup_leading"] == 1
    assert any(key.startswith("spotsup_budget_usd") for key in found)


# -- between two looks -----------------------------------------------------------------------------------------


def seen(*steps: JobView, first: JobView | None = None) -> dict[str, float]:
    """What is counted while the journal shows one view after another."""
    mirror = Mirror(*([first] if first else []))
    observer = Observer(mirror, Leads())
    observer.follow()
    for step in steps:
        mirror.show(step)
        observer.follow()
        observer.follow()
    return samples(picture(), observer)


def test_a_pause_is_counted_once_with_its_parts() -> None:
    paused = view(
        job(),
        [member(1)],
        round=round_of(1, number=2),
        pauses=Pauses("job-u-1", (Pause(2, NOW - 1, 4.0, detect_s=1.0, agree_s=3.0, storage_bytes=2**30),)),
    )
    found = seen(paused, replace(paused, revision=8), first=training())
    assert found["spotsup_pause_seconds_count phase=whole"] == 1
    assert found["spotsup_pause_seconds_sum phase=agree"] == 3.0
    assert "spotsup_pause_seconds_count phase=restore" not in found
    assert found["spotsup_restored_bytes_total source=storage"] == 2**30


def test_what_was_before_this_daemon_led_is_not_counted_again() -> None:
    old = view(
        job(),
        [member(1, notice=NoticeRecord(NOW, NOW, "m"))],
        round=round_of(1, number=2),
        pauses=Pauses("job-u-1", (Pause(2, NOW - 1, 4.0),)),
    )
    found = seen(replace(old, revision=8), first=old)
    assert "spotsup_pause_seconds_count phase=whole" not in found
    assert not any(key.startswith("spotsup_interruptions_total") for key in found)


def test_the_time_from_a_notice_to_the_request_is_measured() -> None:
    doomed = member(1, notice=NoticeRecord(NOW + 50, NOW - 5, "metadata"))
    before = view(job(), [member(1), member(2)])
    noticed = view(job(), [doomed, member(2)])
    replaced = view(job(), [doomed, member(2), node(3, NodeState.REQUESTED, replaces=doomed.id, created_at=NOW - 4.5)])
    found = seen(noticed, replaced, first=before)
    assert found["spotsup_notice_to_request_seconds_count"] == 1
    assert found["spotsup_notice_to_request_seconds_sum"] == 0.5
    assert found["spotsup_interruptions_total cloud=local kind=notice"] == 1


def refused(number: int, **changes: Any) -> NodeRecord:
    history = (Transition(NOW, "requested", "gone", "no capacity"),)
    gone = replace(node(number, NodeState.REQUESTED), state=NodeState.GONE, error="no capacity", history=history)
    return replace(gone, **changes)


def test_answers_are_counted_by_pool_and_of_very_many_pools_together() -> None:
    before = view(job(), [node(1, NodeState.REQUESTED), node(2, NodeState.REQUESTED)])
    after = view(job(), [node(1, NodeState.PENDING), refused(2)])
    found = seen(after, first=before)
    pool = "cloud=local instance_type=small market=spot zone=zone-a"
    assert found[f"spotsup_pool_answers_total answer=granted {pool}"] == 1
    assert found[f"spotsup_pool_answers_total answer=refused {pool}"] == 1
    many = [refused(n, offer=replace(OFFER, zone=f"z{n}")) for n in range(10, MAX_POOLS + 12)]
    found = seen(view(job(), many), first=before)
    other = "cloud=other instance_type=other market=other zone=other"
    assert found[f"spotsup_pool_answers_total answer=refused {other}"] == 2
    assert sum(key.startswith("spotsup_pool_answers_total") for key in found) == MAX_POOLS + 1


def test_the_phases_of_a_start_are_measured_when_a_node_joins() -> None:
    history = tuple(
        Transition(at, before, after, "")
        for at, before, after in [
            (NOW - 90, "requested", "pending"),
            (NOW - 60, "booting", "bootstrapping"),
            (NOW - 20, "bootstrapping", "ready"),
            (NOW - 15, "ready", "member"),
        ]
    )
    joined = member(3, created_at=NOW - 100, history=history)
    found = seen(view(job(), [joined]), first=view(job(), [node(3, NodeState.READY)]))
    took = {phase: found[f"spotsup_node_start_seconds_sum phase={phase}"] for phase in ("boot", "bootstrap", "join")}
    assert took == {"boot": 40.0, "bootstrap": 40.0, "join": 5.0}


def test_a_standby_counts_nothing_and_an_observer_that_fails_goes_on() -> None:
    mirror, leads = Mirror(training()), Leads()
    observer = Observer(mirror, leads)
    observer.follow()
    leads.valid = False
    mirror.show(view(job(), [member(1, notice=NoticeRecord(NOW, NOW, "m"))]))
    observer.follow()
    mirror.show(view(job(), [member(1, notice=None, history=3)]))
    leads.valid = True
    observer.follow()
    mirror.show(view(job(), [member(4, history=3)]))
    observer.follow()
    assert not any(key.startswith("spotsup_interruptions_total") for key in samples(picture(), observer))


# -- rules, panels, and their document -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported() -> Mapping[str, set[str]]:
    """Every metric as rules name it -> its labels."""
    observer = Observer(Mirror(), Leads())
    full = picture(training(), parts={"loop": PartHealth(0.0, 0)}, budgets=Budgets(1.0))
    known: dict[str, set[str]] = {}
    for metric in families(full):
        names = [f"{metric.name}_{end}" for end in {"counter": ["total"], "info": ["info"]}.get(metric.type, [])]
        labels = {label for sample in metric.samples for label in sample.labels}
        known |= dict.fromkeys(names or [metric.name], labels | set(getattr(metric, "_labelnames", ())))
    for found in observer._ticks, observer._pauses, observer._requests, observer._starts:
        known |= {f"{found._name}_{end}": {*found._labelnames, "le"} for end in ("bucket", "sum", "count")}
    for counter in observer._interruptions, observer._answers, observer._restored:
        known[f"{counter._name}_total"] = set(counter._labelnames)
    return known


@pytest.fixture(scope="module")
def of_nodes() -> Mapping[str, set[str]]:
    """Every metric of a node's agent -> its labels, with those of `[api] targets`."""
    (row,) = targets([view(job(), [replace(member(1), private_address="10.0.0.5")])], 9100, gpus=False)
    found = text_string_to_metric_families(host_metrics())
    return {sample.name: {*sample.labels, *row["labels"], "instance"} for family in found for sample in family.samples}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    for panel in grafana.dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (each["query"] for each in grafana.dashboard()["templating"]["list"] if each["type"] == "query")


def test_rules_and_panels_name_only_metrics_and_labels_that_are_exported(
    exported: Mapping[str, set[str]], of_nodes: Mapping[str, set[str]]
) -> None:
    used = set()
    exported = {**exported, **of_nodes}
    for text in expressions():
        for name, selector in re.findall(
            r"\b((?:spotsup|node)_\w+)(?!\w)(\{[^}]*\})?", re.sub(r"\bspotsup_(?=job\b|node\b)", "OUR_", text)
        ):
            assert name in exported, f"{name} of {text} is not exported"
            labels = set(re.findall(r"(\w+)\s*(?:=~|!=|=)", selector.replace("OUR_", "spotsup_")))
            assert labels <= exported[name], f"{name} has no {labels - exported[name]}"
            used.add(name)
        by = {each.strip() for group in re.findall(r"\bby \(([^)]*)\)", text) for each in group.split(",")}
        assert by <= {"instance", *(label for labels in exported.values() for label in labels)}
    assert len(used) > 30


def test_what_make_docs_lists_is_what_is_exported(exported: Mapping[str, set[str]]) -> None:
    listed = {name: set(labels) for name, (_, labels) in tables.metrics().items()}
    assert listed == {re.sub(r"_(bucket|sum|count)$", "", name): labels - {"le"} for name, labels in exported.items()}


def test_every_alert_says_what_it_is_and_has_an_entry_in_the_document() -> None:
    for rule in rules():
        path, anchor = rule["annotations"]["runbook_url"].split("#")
        assert ROOT / path == DOCUMENT
        assert anchor == rule["alert"].lower()
        assert anchor in anchors(DOCUMENT)
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
    titles = re.findall(r"^### (\w+)$", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(titles) == sorted(rule["alert"] for rule in rules())


def test_the_dashboard_is_as_written() -> None:
    assert grafana.FILE.read_text() == grafana.text(), "run `make docs` and commit monitoring/"
    ids = [panel["id"] for panel in json.loads(grafana.text())["panels"]]
    assert len(set(ids)) == len(ids)
