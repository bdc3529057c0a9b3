"""A job that begins later, in the whole daemon."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from supervisor.errors import CommandRefusedError, UsageError
from supervisor.model import JobState
from tests.sim.harness import alive, empty_world, record, sentence, service, submit

AHEAD_S = 7200.0


@pytest.mark.long
def test_a_job_begins_after_its_time_although_another_daemon_leads_by_then() -> None:
    world = empty_world()
    at = datetime.fromtimestamp(world.clock.now() + AHEAD_S, UTC)
    submit(world, "job", 2, 2, 2, start_after=at.isoformat())
    world.run(AHEAD_S / 2)
    world.crash_daemon()
    world.run(AHEAD_S / 2 - 60.0)
    assert (alive(world), record(world).state) == (0, JobState.QUEUED)
    assert world.run_until(lambda _: record(world).state is JobState.RUNNING, 180.0)
    assert world.clock.now() >= at.timestamp()


def test_a_job_of_a_far_year_is_refused() -> None:
    world = empty_world()
    with pytest.raises(UsageError, match="more than a year ahead"):
        submit(world, "job", 1, 1, 1, start_after="9999-01-01T00:00Z")


def test_a_run_that_has_ended_is_cancelled_as_long_as_its_schedule_would_submit_it_again() -> None:
    world = empty_world()
    submit(world, "job", 1, 1, 1, schedule="* * * * *")
    assert world.run_until(lambda _: record(world).state is JobState.RUNNING, 180.0)
    world.nodes.trainings["job"].finish()
    assert world.run_until(lambda _: record(world).state is JobState.SUCCEEDED and not alive(world), 60.0)
    assert record(world).is_renewed
    assert sentence(world).endswith("; its schedule submits it again")
    service(world).commands.cancel("job")
    world.run(2.0)
    assert sentence(world) == "finished: exit code 0"
    assert not record(world).is_renewed
    with pytest.raises(CommandRefusedError, match="has ended"):
        service(world).commands.pause("job")
