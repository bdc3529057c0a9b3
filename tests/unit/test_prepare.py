"""How a job's record becomes a bootstrap."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from spotsup.archive import Archive
from spotsup_trainer.agent.child import launcher_command
from spotsup_trainer.wire import AgentConfig, decode

from bootstrap.assumed import UBUNTU_PYTHON
from bootstrap.blame import OF_JOB
from bootstrap.environment.interpreter import PYTHON_MIN
from bootstrap.errors import BootstrapError, BootstrapTimeoutError, CommandError, LoginShellError
from bootstrap.log_agent.model import LogAgent
from provisioners.aws.settings import AwsSettings
from provisioners.azure.settings import AzureSettings
from provisioners.base import Market, Offer
from provisioners.gcp.settings import GcpSettings
from provisioners.localcloud.settings import LocalSettings
from provisioners.registry import CLOUDS
from provisioners.settings import Section
from supervisor.checkpoints import output_of
from supervisor.config import Config, NodeConfig
from supervisor.errors import JournalUnavailableError, NotFoundError
from supervisor.model import JobRecord, NodeRecord
from supervisor.nodes.prepare import (
    folder_on,
    has_dead_man,
    log_agent_of,
    outcome_of,
    package_variables,
    python_on,
    setup_of,
)
from supervisor.spec import parse_spec


def node_with(settings: Section) -> tuple[Config, NodeRecord]:
    """A node on the cloud with these settings."""
    (cloud,) = [each.name for each in CLOUDS.values() if isinstance(settings, each.settings)]
    node = NodeRecord("n1", "j", "token", Offer(cloud, "r", "z", "t", Market.SPOT, None), 0.0)
    return Config.model_validate({cloud: settings}), node


def job_with(**more: Any) -> JobRecord:
    spec = parse_spec({"name": "resnet", "nodes": 2, "run": "train.py", **more})
    return JobRecord("resnet", "ab12c", spec, "0" * 64, 0.0, 2, 2, 2)


AZURE: dict[str, Any] = {"regions": ("r",), "subscription": "s", "resource_group": "g"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (LocalSettings(), False),
        (AwsSettings(regions=("r",)), True),
        (AwsSettings(regions=("r",), dead_man_s=0), False),
        (AzureSettings(**AZURE), False),
        (AzureSettings(**AZURE, dead_man_role="r"), True),
    ],
)
def test_a_dead_man_switch_is_expected_where_user_data_brings_one(settings: Section, expected: bool) -> None:
    assert has_dead_man(*node_with(settings)) is expected


@pytest.mark.parametrize(
    ("storage", "checkpoints", "folder"),
    [
        ("shared", "", "/mnt/out/spotsup/resnet-ab12c/checkpoints"),
        ("shared", "/mnt/out/mine/", "/mnt/out/mine/resnet-ab12c"),
        ("shared", "s3://bucket/prefix/", "s3://bucket/prefix/resnet-ab12c"),
        ("", "abfs://saved@account.dfs.core.windows.net", "abfs://saved@account.dfs.core.windows.net/resnet-ab12c"),
        ("shared", "none", ""),
        ("", "~/mine", "~/mine/resnet-ab12c"),
        ("", "none", ""),
        ("", "", "STATE/localcloud/shared/resnet-ab12c/checkpoints"),
    ],
)
def test_each_run_has_its_own_folders_for_checkpoints_and_output(
    tmp_path: Path, storage: str, checkpoints: str, folder: str
) -> None:
    config = Config(state_dir=str(tmp_path))
    mounts = [
        {"mount": "/mnt/scratch", "scratch": True},
        {"mount": "/mnt/data", "nfs": "s:/d", "mode": "ro"},
        {"mount": "/mnt/out", "nfs": "s:/o"},
    ]
    job = job_with(storage=mounts if storage else [], checkpoints=checkpoints)
    node = NodeRecord("n1", "resnet", "token", Offer("local", "r", "z", "t", Market.SPOT, None), 0.0)
    setup = setup_of(config, node, job, (), Archive.of(b"c"), Archive.of(b"t"), None)
    made = decode(AgentConfig, setup.agent_config)
    assert made.checkpoints == folder.replace("STATE", str(tmp_path))
    output = "/mnt/out/spotsup" if storage else f"{tmp_path}/localcloud/shared"
    assert made.output == f"{output}/resnet-ab12c/output"


def test_a_rented_job_without_shared_storage_has_no_folder_for_its_output() -> None:
    spec = job_with(checkpoints="s3://bucket/prefix").spec
    assert output_of(spec, "resnet-ab12c", rented=True) == ""
    assert output_of(spec, "resnet-ab12c", rented=False) == "resnet-ab12c/output"


@pytest.mark.parametrize(
    ("more", "found"), [({}, None), ({"preload": []}, ""), ({"preload": ["yaml", "a.b"]}, "yaml,a.b")]
)
def test_the_launcher_learns_what_to_import_ahead(more: dict[str, Any], found: str | None) -> None:
    node = NodeRecord("n1", "resnet", "token", Offer("local", "r", "z", "t", Market.SPOT, None), 0.0)
    setup = setup_of(Config(), node, job_with(**more), (), Archive.of(b"c"), Archive.of(b"t"), None)
    assert setup.env.get("SPOTSUP_PRELOAD") == found


def test_a_job_that_resumes_finds_the_folders_of_earlier_ones(tmp_path: Path) -> None:
    config = Config(state_dir=str(tmp_path))
    earlier = (job_with().checkpoint_path, "/mnt/out/spotsup/resnet-old12/checkpoints", "~/mine")
    folders = [folder_on(config, "local", path) for path in earlier]
    assert folders == [f"{tmp_path}/localcloud/shared/resnet-ab12c/checkpoints", *earlier[1:]]


def test_a_data_job_needs_neither_a_gpu_nor_torch() -> None:
    spec = {"name": "fill", "kind": "data", "run": "cp -r /a /b"}
    job = JobRecord("fill", "ab12c", parse_spec(spec), "0" * 64, 0.0, 1, 1, 1)
    offer = Offer("local", "r", "z", "t", Market.SPOT, None, gpu="T4", gpus=1)
    node = NodeRecord("n1", "fill", "token", offer, 0.0)
    setup = setup_of(Config(), node, job, (), Archive.of(b"c"), Archive.of(b"t"), None)
    assert (setup.host.gpus, setup.torch) == (0, False)
    config = decode(AgentConfig, setup.agent_config)
    assert (config.kind, config.command) == ("data", ("cp -r /a /b",))
    command = launcher_command(config)
    assert command[1] == "-c"
    assert "spotsup_trainer.launcher import data_job" in command[2]
    assert command[-2:] == ["--", "cp -r /a /b"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (LocalSettings(), None),
        (AwsSettings(regions=("r",)), None),
        (AwsSettings(regions=("r",), log_group="a/b"), LogAgent("cloudwatch", "a/b")),
        (GcpSettings(regions=("r",), project="p"), None),
        (GcpSettings(regions=("r",), project="p", ops_agent=True), LogAgent("ops")),
    ],
)
def test_the_clouds_own_agent_ships_logs_where_its_settings_say_so(
    settings: Section, expected: LogAgent | None
) -> None:
    assert log_agent_of(*node_with(settings)) == expected


def test_an_etcd_that_does_not_return_the_code_is_no_failure_of_the_machine() -> None:
    """P5: many nodes ask for an archive of megabytes at a time; five failures in a row would end the job."""
    unavailable = outcome_of("n1", JournalUnavailableError("etcd does not answer"))
    assert (unavailable.unreachable, unavailable.unhealthy, unavailable.foreign) == (True, False, False)
    assert not outcome_of("n1", NotFoundError("the code is not in etcd")).unreachable


@pytest.mark.parametrize(("status", "of_job"), [(OF_JOB, True), (1, False), (None, False)])
def test_what_a_script_blames_on_the_job_is_its_fault(status: int | None, of_job: bool) -> None:
    error = CommandError("no", node="n1", step="environment", exit_status=status, stderr="no torch")
    assert bool(outcome_of("n1", error).of_job) is of_job


def test_a_login_shell_that_ends_at_once_is_the_images_fault_and_one_that_hangs_the_machines() -> None:
    ends = outcome_of("n1", LoginShellError("it ends", node="n1", step="login", stderr="bye", tried=True))
    assert (bool(ends.of_job), ends.unhealthy) == (True, False)
    hangs = outcome_of("n1", BootstrapTimeoutError("it hangs", node="n1", step="login"))
    assert (hangs.of_job, hangs.unhealthy) == ("", True)


def test_the_daemons_own_interpreter_is_asked_for_on_its_own_computer_only() -> None:
    rented = Config.model_validate({"aws": AwsSettings(regions=("r",))})
    virtual = Config.model_validate({"local": LocalSettings(enabled=True, image="/i")})
    assert python_on(Config(), "local") == sys.executable
    assert python_on(rented, "aws") == "python3"
    assert python_on(rented, "gcp") == "python3", "a cloud that is not configured any more"
    assert python_on(virtual, "local") == "python3"
    assert python_on(Config(node=NodeConfig(python="~/p")), "local") == "~/p"


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_the_default_images_have_an_interpreter_that_nodes_can_use(cloud: str) -> None:
    """The release in the image's name is the one that dry runs assume, and is still maintained by Canonical."""
    found = CLOUDS[cloud]
    image = str(found.settings.model_fields["image"].default)
    release = found.host.ubuntu
    assert release in image or f"{release.replace('.', '')}" in image
    assert UBUNTU_PYTHON[release] >= PYTHON_MIN


def test_an_index_and_a_wheelhouse_reach_both_tools() -> None:
    assert package_variables(NodeConfig()) == {}
    index = package_variables(NodeConfig(index_url="https://pypi.example.com/simple"))
    assert index == dict.fromkeys(("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), "https://pypi.example.com/simple")
    assert package_variables(NodeConfig(wheelhouse="/mnt/wheels")) == {
        "PIP_FIND_LINKS": "/mnt/wheels", "UV_FIND_LINKS": "/mnt/wheels", "PIP_NO_INDEX": "1"
    }  # fmt: skip


def test_a_secret_that_is_missing_is_the_jobs_fault_and_no_machines() -> None:
    why = "ann has no secret HF_TOKEN: `spotsupctl secret set HF_TOKEN`"
    found = [
        outcome_of(node, BootstrapError(why, node=node, step="secrets", tried=True)) for node in ("job-a-1", "job-a-2")
    ]
    assert [(each.unhealthy, each.unreachable, why in each.error) for each in found] == [(False, False, True)] * 2
    assert found[0].of_job == found[1].of_job != "", "the second that fails alike ends a job that never trained"
