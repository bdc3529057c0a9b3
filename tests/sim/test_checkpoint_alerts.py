"""Checkpoints that are not being written: who hears of it, and how often."""

from __future__ import annotations

import pytest
from spotsup_simulator.world import World

from supervisor.alerts.texts import slack_text
from supervisor.api.jobs.views import job_detail
from supervisor.cli.show import show_job
from supervisor.events import EventKind
from supervisor.model import Event
from tests.sim.harness import RULES, machine_of, training_world
from tests.sim.promises import jobs_of

DISK = "cannot write /ckpt/step-40: No space left on device"
KINDS = {EventKind.CHECKPOINTS_FAILING, EventKind.CHECKPOINTS_RESUMED}
QUIET_S = RULES.checkpoints.alert_quiet_s


def alerts(world: World) -> list[Event]:
    """The alerts of checkpoints that Slack got."""
    return [event for event in world.sent if event.kind in KINDS]


def shown(world: World) -> str:
    """What `spotsupctl status` shows."""
    problem: str = job_detail(jobs_of(world)["job"], "", world.clock.now())["checkpoint_problem"]
    return problem


def test_a_checkpoint_problem_and_its_end_are_reported_once_each_also_after_a_restart() -> None:
    world = training_world()
    training = world.nodes.trainings["job"]
    saved = training.save()
    world.run(5.0)
    assert (alerts(world), shown(world)) == ([], "")
    training.problem = DISK
    world.run(5.0)
    world.crash_daemon()
    world.run(5.0)
    (trouble,) = alerts(world)
    assert trouble.text == f"checkpoints of job are not being written (the newest is of step {saved}): {DISK}"
    assert slack_text([trouble]).startswith(":rotating_light: *job*: checkpoints of job are not")
    assert shown(world) == DISK
    world.run(2 * QUIET_S)
    assert alerts(world) == [trouble], "nothing has changed"
    training.problem = ""
    saved = training.save()
    world.run(5.0)
    world.crash_daemon()
    world.run(5.0)
    _, over = alerts(world)
    assert over.text == f"checkpoints of job are written again; the newest is of step {saved}"
    assert over.data == {"checkpoint_step": saved}
    assert shown(world) == ""


def test_the_api_shows_the_checkpoint_problem(capsys: pytest.CaptureFixture[str]) -> None:
    world = training_world()
    world.nodes.trainings["job"].problem = f"{DISK} [Errno 28]"
    world.run(2.0)
    capsys.readouterr()
    show_job(job_detail(jobs_of(world)["job"], "", world.clock.now()))
    assert f"checkpoints are not being written: {DISK} [Errno 28]\n" in capsys.readouterr().out


def test_a_restarted_program_has_not_written_a_checkpoint_by_that() -> None:
    world = training_world()
    training = world.nodes.trainings["job"]
    training.problem = DISK
    world.run(5.0)
    training.problem = ""  # nothing was tried yet
    world.run(30.0)
    assert [event.kind for event in alerts(world)] == [EventKind.CHECKPOINTS_FAILING]
    assert shown(world) == DISK


def test_a_flapping_disk_does_not_flood_with_alerts() -> None:
    world = training_world()
    training = world.nodes.trainings["job"]
    for number in range(int(3 * QUIET_S / 10)):
        training.problem = f"{DISK}, {number} bytes are free"
        world.run(5.0)
        training.problem = ""
        training.save()
        world.run(5.0)
    assert 4 <= len(alerts(world)) <= 8
    assert len(alerts(world)) == 2 * len(
        [event for event in alerts(world) if event.kind is EventKind.CHECKPOINTS_FAILING]
    )


def test_another_problem_is_reported_once_the_first_report_is_old() -> None:
    world = training_world()
    training = world.nodes.trainings["job"]
    training.problem = DISK
    world.run(5.0)
    training.problem = "the disk\n is read-only " + "x" * 5000
    world.run(QUIET_S / 2)
    assert len(alerts(world)) == 1
    assert shown(world).startswith("the disk"), "who asks hears the newest"
    world.run(QUIET_S / 2)
    assert len(alerts(world)) == 2
    assert ": the disk is read-only xxx" in alerts(world)[1].text
    assert len(alerts(world)[1].text) < 600


def test_a_checkpoint_problem_outlives_a_round_and_ends_with_the_job() -> None:
    world = training_world()
    training = world.nodes.trainings["job"]
    training.problem = DISK
    world.run(5.0)
    world.cloud.preempt(machine_of(world, 1), 0.0)
    world.run(60.0)
    assert len(alerts(world)) == 1
    training.target_steps = 1
    world.run(60.0)
    assert shown(world) == ""
    assert len(alerts(world)) == 1
