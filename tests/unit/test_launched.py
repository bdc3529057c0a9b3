"""What TorchX's and Hydra's launchers ask for, as keys of a job file."""

from __future__ import annotations

import pytest
from spotsup.errors import UsageError
from spotsup.launched import name_of, nested, overrides_of_job, run_of

from supervisor.spec import parse_spec

DDP = (
    "torchrun --rdzv_backend c10d --rdzv_endpoint ${MASTER_ADDR:=localhost}:29500 --rdzv_id x --nnodes 1:2 "
    "--nproc_per_node 8 --tee 3 --role '' "
)


@pytest.mark.parametrize(
    ("entrypoint", "args", "run", "processes"),
    [
        ("bash", ["-c", f"{DDP}train.py --lr 0.1 'a b'"], "train.py --lr 0.1 'a b'", 8),
        ("bash", ["-c", f"{DDP}-m pkg.train --x"], "-m pkg.train --x", 8),
        ("python", ["-m", "pkg.train"], "-m pkg.train", 0),
        ("/usr/bin/python3.11", ["train.py"], "train.py", 0),
        ("sh", ["-c", "python train.py"], "train.py", 0),
    ],
)
def test_a_role_of_torchx_is_a_script_with_arguments(
    entrypoint: str, args: list[str], run: str, processes: int
) -> None:
    assert run_of(entrypoint, args) == (run, processes)
    assert parse_spec({"name": "job", "nodes": 1, "run": run}).command


@pytest.mark.parametrize(
    ("entrypoint", "args"),
    [
        ("echo", ["hello"]),
        ("bash", ["-c", "echo hello"]),
        ("python", ["-c", "print()"]),
        ("torchrun", []),
        ("bash", ["-c", "'open"]),
        ("bash", ["-c", ""]),
    ],
)
def test_what_is_no_python_program_is_refused(entrypoint: str, args: list[str]) -> None:
    with pytest.raises(UsageError):
        run_of(entrypoint, args)


@pytest.mark.parametrize("text", ["train", "My App_2", "", "9-lives", "x" * 100, "-"])
def test_names_are_those_of_jobs(text: str) -> None:
    name = name_of(text, "a1b2c3")
    assert name.endswith("-a1b2c3")
    assert parse_spec({"name": name, "nodes": 1, "run": "t.py"}).name == name


def test_options_become_keys_and_a_job_gets_its_own_overrides() -> None:
    assert nested({"limits.hours": 2, "limits.usd": None, "run": "t.py", "limits.x": 1}) == {
        "limits": {"hours": 2, "x": 1},
        "run": "t.py",
    }
    given = ["lr=0.1", "hydra/launcher=spotsup", "+hydra.launcher.spec.x=1", "hydra.sweep.dir=x", "+model=big", "~a"]
    assert overrides_of_job(given) == ["lr=0.1", "+model=big", "~a"]
