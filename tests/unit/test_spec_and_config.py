"""Bad input: one clear sentence that says what is wrong and what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.clouds import clouds_of
from supervisor.config import Config, check_paths, load_config, parse_config
from supervisor.errors import StartError, UsageError
from supervisor.identity import Identity, load_identity
from supervisor.spec import parse_spec

GOOD: dict[str, Any] = {"name": "resnet50", "nodes": {"min": 2, "desired": 4, "max": 8}, "run": "train.py --lr 0.1"}


@pytest.mark.parametrize(
    ("storage", "kind"),
    [
        ({"nfs": "10.0.0.5:/export"}, "nfs"),
        ({"nfs": "fs-0a1b.efs.us-east-1.amazonaws.com:/"}, "efs"),
        ({"nfs": "fs-0a1b.efs.cn-north-1.amazonaws.com.cn:/"}, "efs"),
        ({"nfs": "acc.file.core.windows.net:/acc/share"}, "azure-files"),
        ({"filestore": "10.0.0.2:/vol1"}, "filestore"),
        ({"lustre": "fs-2.fsx.us-east-1.amazonaws.com@tcp:/abcdef"}, "lustre"),
        ({"scratch": True}, "scratch"),
    ],
)
def test_the_kind_of_storage_follows_from_its_key_or_its_servers_name(storage: dict[str, Any], kind: str) -> None:
    spec = parse_spec({**GOOD, "storage": [{"mount": "/mnt/x", **storage}]})
    mount = spec.storage[0].as_mount()
    assert (mount.kind, mount.mountpoint, mount.mode) == (kind, "/mnt/x", "rw")
    assert mount.source == ("" if kind == "scratch" else next(iter(storage.values())))
    assert spec.shared == ("" if kind == "scratch" else "/mnt/x")


@pytest.mark.parametrize("environment", ["image", "uv", "requirements.txt", "deps/gpu.txt"])
def test_an_environment_is_image_uv_or_a_requirements_file(environment: str) -> None:
    assert parse_spec({**GOOD, "environment": environment}).environment == environment


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"colour": 1}, "unknown key `colour`; known here: name, kind, nodes"),
        ({"early_stop": 500}, "`early_stop` is not a key any more; to end a sweep's worst jobs early, use Optuna"),
        ({"nodes": {"min": 2, "maximum": 3}}, "unknown key `nodes.maximum`; known here: min, desired, max"),
        ({"nodes": {"min": 2, "desired": 3, "max": 4, "multiple_of": 2}}, "desired is 3; it must be a multiple of 2"),
        ({"nodes": {"min": 5, "desired": 4, "max": 8}}, "min ≤ desired ≤ max is needed, but min is 5, desired 4"),
        ({"nodes": {"min": "2"}}, "`nodes.min` is '2'; write a number, without quotes and without a unit"),
        ({"nodes": {"min": 0}}, "`nodes.min` is 0"),
        ({"nodes": 65}, "`nodes`: it is 65, and can be 1 to 64"),
        ({"nodes": "two"}, "`nodes`: 'two' is not a number; write `nodes: 4`, or a mapping with min, desired and max"),
        ({"resources": "8xH100"}, "`resources` is '8xH100'; write a mapping with keys such as gpu, gpus_per_node"),
        ({"storage": ["/data"]}, "`storage.0` is '/data'; write a mapping with keys such as mount, nfs"),
        ({"placement": {"zones": "a"}}, "`placement.zones` is 'a'; write a list, such as [a]"),
        ({"run": "torchrun --nnodes 2 t.py"}, "leave out torchrun and its options, and begin with the script"),
        ({"nodes": {"min": 2, "spares": 17}}, "`nodes.spares` is 17: input should be less than or equal to 16"),
        ({"nodes": {"min": 2, "spares": -1}}, "`nodes.spares` is -1"),
        ({"nodes": {"min": 2, "spares": True}}, "`nodes.spares` is True"),
        ({"name": "Res Net"}, "`name` is 'Res Net'; use 2 to 40 of a-z, 0-9 and -"),
        ({"run": None}, "`run` is None; write a text, in quotes"),
        ({"run": "train.py 'open"}, "`run`: No closing quotation"),
        (
            {"market": "cheap"},
            "`market`: 'cheap' is no market; write spot, on-demand, flex, reserved, or several of them",
        ),
        ({"env": {"DEBUG": True}}, "`env.DEBUG` is True; write a text, in quotes"),
        ({"env": ["LR=0.1"]}, "`env` is '…'; write a mapping, such as {NAME: value}"),
        ({"env": {"OUT": "$HOME/out"}}, "the value of OUT has $HOME, which nothing expands: write the value itself"),
        ({"env": {"PATH": "/x:${LD_LIBRARY_PATH}"}}, "the value of PATH has ${LD_LIBRARY_PATH}, which nothing expands"),
        ({"env": {"A-B": "1"}}, "`env`: 'A-B' is not a variable name; use letters, digits and _"),
        ({"resources": {"gpu": "V100"}}, "gpu is V100, but gpus_per_node is not given"),
        ({"limits": {"hours": -1}}, "`limits.hours` is -1"),
        (
            {"storage": [{"mount": "/mnt/x"}]},
            "/mnt/x needs one of nfs, filestore, lustre and `scratch: true`; it has none",
        ),
        ({"storage": [{"mount": "/mnt/x", "nfs": "s:/", "scratch": True}]}, "it has nfs and scratch"),
        ({"storage": [{"mount": "/usr", "nfs": "s:/"}]}, "`storage.0`: /usr is reserved for the machine itself; mount"),
        ({"storage": [{"mount": "/mnt/x", "nfs": "s"}]}, "'s' cannot be mounted at /mnt/x; write it as server:/path"),
        ({"storage": [{"mount": "/mnt/x", "scratch": True}] * 2}, "two file systems cannot have the same mountpoint"),
        (
            {"storage": [{"mount": "/mnt/x", "scratch": True}], "checkpoints": "/mnt/x/ck/"},
            "checkpoints is /mnt/x/ck, but /mnt/x is scratch, which ends with its machine",
        ),
        (
            {"storage": [{"mount": "/mnt/x", "nfs": "s:/", "mode": "ro"}], "checkpoints": "/mnt/x"},
            "checkpoints is /mnt/x, but /mnt/x is mounted read-only",
        ),
        ({"checkpoints": "out/ck"}, "`checkpoints`: 'out/ck' is no place for checkpoints; write an absolute folder"),
        ({"checkpoints": "s4://b/x"}, "`checkpoints`: 's4://b/x' is no object store that is known here; write s3://"),
        ({"checkpoints": "s3://B/x"}, "'s3://B/x' is no object store that is known here"),
        ({"checkpoints": "abfs://c/x"}, "'abfs://c/x' is no object store that is known here"),
        ({"checkpoints": "gs://bucket/a//b"}, "the prefix of 'gs://bucket/a//b' may have letters, digits and"),
        ({"checkpoints": "s3://bucket/a?b=c"}, "the prefix of 's3://bucket/a?b=c' may have"),
        ({"checkpoints": "/mnt/../ck"}, "'/mnt/../ck' is no place for checkpoints"),
        ({"kind": "data", "nodes": 1, "checkpoints": "/ck"}, "a data job has no checkpoints: leave `checkpoints` out"),
        ({"kind": "data", "nodes": 1, "preload": []}, "a data job has no workers: leave `preload` out"),
        ({"preload": ["torchvision-io"]}, "'torchvision-io' is no module; write one as in an import statement"),
        ({"preload": ["a,b"]}, "'a,b' is no module"),
        ({"environment": "conda"}, "'conda' is not an environment; use image (the machine's own interpreter), uv"),
        ({"environment": "poetry.lock"}, "'poetry.lock' is not an environment"),
        ({"environment": "../r.txt"}, "'../r.txt' is not an environment"),
        ({"environment": "/etc/r.txt"}, "'/etc/r.txt' is not an environment"),
    ],
)
def test_a_wrong_job_file_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_spec({**GOOD, **change})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UsageError, match="`name` is missing"):
        parse_spec({key: value for key, value in GOOD.items() if key != "name"})
    with pytest.raises(UsageError, match="a job file is a mapping"):
        parse_spec(["train.py"])


@pytest.mark.parametrize(
    ("nodes", "means"),
    [(3, (3, 3, 3, 0)), ({"min": 64, "spares": 16}, (64, 64, 64, 16))],  # spares are in addition to max
)
def test_what_a_number_of_nodes_means(nodes: Any, means: tuple[int, ...]) -> None:
    found = parse_spec({**GOOD, "nodes": nodes}).nodes
    assert (found.min, found.desired, found.max, found.spares) == means


@pytest.mark.parametrize("run", ["train.py --lr 1", "python train.py --lr 1", "torchrun train.py --lr 1"])
def test_an_interpreter_before_the_script_is_dropped(run: str) -> None:
    assert parse_spec({**GOOD, "run": run}).command == ("train.py", "--lr", "1")
    assert parse_spec({**GOOD, "run": "python3 -m package"}).command == ("-m", "package")


def test_numbers_are_accepted_as_environment_variables() -> None:
    assert parse_spec({**GOOD, "env": {"LR": 0.1, "SEED": 7, "NAME": "x"}}).env == {
        "LR": "0.1",
        "SEED": "7",
        "NAME": "x",
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cluster = 3", "`cluster` is 3"),
        ("colour = 1", "unknown key `colour`"),
        ("[[alerts.email]]\nname = 'ops'", "`alerts.email` is not a key any more; for e-mail, let a signed webhook"),
        ("[aws]\nregion = 'us-east-1'", "unknown key `aws.region`; known here: regions, ssh_user"),
        ("[timing]\ntick = 1", "unknown key `timing.tick`; known here: tick_s"),
        ("[timing]\ntick_s = 9.0", "tick_s (9 s) must be smaller than leader_ttl_s (6 s)"),
        ("[slack]\nwebhook = 'x'", "unknown key `slack.webhook`"),
        ("cluster = ", "is not TOML"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "spotsupd.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_config(file)
    assert sentence in str(caught.value)


RENTED = {
    "aws": {"regions": ["us-east-1"]},
    "gcp": {"project": "p", "regions": ["us-central1"]},
    "azure": {"subscription": "s", "resource_group": "g", "regions": ["eastus"]},
}


@pytest.mark.parametrize(
    ("tables", "used"),
    [
        ({}, ["local"]),
        ({"local": {"dir": "/x"}}, ["local"]),
        ({"local": {"enabled": False}}, []),
        *(({name: table}, [name]) for name, table in RENTED.items()),
        ({"aws": RENTED["aws"], "local": {"dir": "/x"}}, ["aws"]),
        ({"aws": RENTED["aws"], "local": {"enabled": True}}, ["local", "aws"]),
        (RENTED, ["aws", "gcp", "azure"]),
    ],
)
def test_beside_a_rented_cloud_the_local_one_is_used_only_where_it_is_asked_for(
    tables: dict[str, object], used: list[str]
) -> None:
    assert clouds_of(parse_config(tables, "the configuration")) == used


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the configuration .*missing.toml: No such file"):
        load_config(tmp_path / "missing.toml")


def test_a_socket_path_that_is_too_long_is_refused() -> None:
    with pytest.raises(UsageError, match=r"bytes, and Unix sockets take 107: set api\.socket"):
        check_paths(Config(state_dir="/tmp/" + "x" * 120))


def test_the_secret_is_created_once_kept_private_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "cluster.key"
    first = load_identity(path)
    assert load_identity(path) == first
    assert path.stat().st_mode & 0o077 == 0
    assert first.secret.hex() not in repr(first)
    path.chmod(0o644)
    with pytest.raises(StartError, match="is readable by others"):
        load_identity(path)


def test_derived_keys_are_the_same_every_time() -> None:
    one, other = Identity(b"1" * 32), Identity(b"2" * 32)
    assert one.host_key("n1") == one.host_key("n1")
    assert len({one.host_key("n1").public, one.host_key("n2").public, other.host_key("n1").public}) == 3
    assert "PRIVATE" not in repr(one.host_key("n1"))


def test_a_zonal_file_system_pins_the_zone() -> None:
    storage: list[dict[str, Any]] = [
        {"mount": "/mnt/a", "filestore": "10.0.0.2:/vol1", "zone": "us-central1-b"},
        {"mount": "/mnt/b", "nfs": "fs-0a1b.efs.us-east-1.amazonaws.com:/"},
        {"mount": "/mnt/c", "lustre": "fs-2.fsx.us-east-1.amazonaws.com@tcp:/abcdef"},
        {"mount": "/mnt/d", "scratch": True},
    ]
    for placement in ({}, {"zones": ["us-central1-a", "us-central1-b"]}):
        for query in parse_spec({**GOOD, "storage": storage, "placement": placement}).offer_queries:
            assert query.zones == ("us-central1-b",)
            assert query.file_servers == (
                "10.0.0.2",
                "fs-0a1b.efs.us-east-1.amazonaws.com",
                "fs-2.fsx.us-east-1.amazonaws.com",
            )
    with pytest.raises(UsageError, match=r"is in us-central1-b, which is not one of `placement.zones` \(us-west1-a\)"):
        parse_spec({**GOOD, "storage": storage, "placement": {"zones": ["us-west1-a"]}})
    with pytest.raises(UsageError, match=r"in several zones \(us-central1-b, elsewhere\)"):
        parse_spec({**GOOD, "storage": [storage[0], {**storage[1], "zone": "elsewhere"}]})
    assert parse_spec({**GOOD, "storage": storage[1:2], "placement": {"zones": ["a"]}}).offer_queries[0].zones == ("a",)
