"""The real Optuna asks for trials; they are jobs of a daemon, and their values are what programs report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState
from spotsup import Client, CommandRefusedError, UsageError
from spotsup.optuna import optimize
from spotsup_simulator.world import World

from tests.integration.test_client import unix
from tests.sim.harness import empty_world
from tests.sim.promises import jobs_of

SPACE = {"lr": FloatDistribution(0.001, 1.0, log=True), "note": CategoricalDistribution(["two words", "one"])}


class Programs:
    """What the jobs' programs report while a script waits: the better, the nearer `lr` is to 0.1."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.most_at_once = 0
        self.failing: set[str] = set()

    def wait(self, _: float) -> None:
        for name, view in jobs_of(self.world).items():
            training = self.world.nodes.trainings.get(name)
            if training is None or training.result is not None or training.formed is None:
                continue
            given = view.record.spec.command
            rate = float(given[given.index("--lr") + 1])
            training.metrics = {"accuracy": 1.0 - abs(rate - 0.1)}
            if training.round_number and view.progress and view.progress.metrics:
                training.finish()
        self.world.run(20.0)
        self.most_at_once = max(self.most_at_once, sum(not each.record.ended for each in jobs_of(self.world).values()))


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def _client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("SPOTSUP_SOCKET", str(tmp_path / "s"))
    return Client()


def test_a_study_finds_the_best_of_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("")
    world = empty_world()
    programs = Programs(world)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1))
    given: dict[str, Any] = {"name": "search", "metric": "accuracy", "wait": programs.wait, "code": code}
    with unix(world, tmp_path / "s"):
        client = _client(tmp_path, monkeypatch)
        optimize(study, client, "train.py", SPACE, trials=5, parallel=2, **given)
        assert [each.state for each in study.trials] == [TrialState.COMPLETE] * 5
        assert study.best_value == max(1.0 - abs(each.params["lr"] - 0.1) for each in study.trials)
        assert programs.most_at_once == 2
        assert [each.user_attrs["job"] for each in study.trials] == [f"search-{number}" for number in range(5)]
        assert "--note" in jobs_of(world)["search-0"].record.spec.command
        with pytest.raises(UsageError, match="at least 1 trial"):
            optimize(study, client, "train.py", SPACE, trials=0, **given)
        client.submit("train.py", name="search-5", code=code)
        with pytest.raises(CommandRefusedError):
            optimize(study, client, "train.py", SPACE, trials=1, **given)
        assert study.trials[-1].state is TrialState.FAIL


class Never(optuna.pruners.BasePruner):
    """Ends every trial at its first value."""

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        return True


def test_what_the_pruner_ends_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("")
    world = empty_world()
    study = optuna.create_study(direction="maximize", pruner=Never())

    def wait(_: float) -> None:
        for training in world.nodes.trainings.values():
            training.metrics = {"accuracy": 0.5}
        world.run(20.0)

    with unix(world, tmp_path / "s"):
        client = _client(tmp_path, monkeypatch)
        optimize(study, client, "train.py", SPACE, name="pruned", trials=1, metric="accuracy", wait=wait, code=code)
    assert study.trials[0].state is TrialState.PRUNED
    assert jobs_of(world)["pruned-0"].record.state == "cancelled"
