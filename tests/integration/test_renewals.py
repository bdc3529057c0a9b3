"""A job with a schedule, in a real etcd: its runs, their code, and a daemon that asks twice."""

from __future__ import annotations

import time
from dataclasses import replace

from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import Keys

from supervisor.journal.codec import dump
from supervisor.journal.journal import Journal
from supervisor.model import JobRecord, JobState
from supervisor.new_job import new_job
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.renewals import Renewals
from supervisor.spec import parse_spec
from tests.support.waiting import until

KEYS = Keys("test")


def test_an_ended_run_is_followed_by_one_more_with_the_same_code_until_it_is_cancelled(
    etcd: Etcd, journal: Journal
) -> None:
    renewals = Renewals(journal, SystemClock())
    spec = parse_spec({"name": "nightly", "nodes": 1, "run": "train.py", "schedule": "0 22 * * *"})
    digest = journal.put_blob(b"code")

    def put(state: JobState, job: JobRecord) -> None:
        ended = replace(job, state=state, ended_at=time.time())
        etcd.put(f"{KEYS.world}jobs/nightly", dump(ended))
        until(lambda: journal.read().jobs.get("nightly") is not None and record().state is state)

    def record() -> JobRecord:
        return journal.read().jobs["nightly"].record

    first = new_job(spec, digest, "submission", time.time())
    put(JobState.SUCCEEDED, first)
    assert not journal.delete_code(digest, journal.read().jobs["nightly"].revision)
    assert renewals.run() == "submitted again: nightly"
    until(lambda: record().run == 2)
    assert (record().state, record().starts_at > time.time()) == (JobState.QUEUED, True)
    assert [run.job.task_id for run in journal.past_runs("nightly")] == [first.task_id]
    assert renewals.run() == ""

    put(JobState.FAILED, record())
    assert renewals.run() == "submitted again: nightly"
    until(lambda: record().run == 3)
    put(JobState.CANCELLED, record())
    assert renewals.run() == ""
    assert journal.delete_code(digest, journal.read().jobs["nightly"].revision)
