"""Steps as a pure function: what holds for any machine."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spotsup.archive import Archive

from bootstrap.environment.interpreter import PYTHON_MIN
from bootstrap.environment.lock import Lock
from bootstrap.environment.step import environment_name, python_of
from bootstrap.facts import AgentFact, Environments, Facts, MountFact, Mounts, System
from bootstrap.model import Again, Command, Reboot, Run, Setup, Skip, Unfit, Upload
from bootstrap.mounts.model import Mount
from bootstrap.steps import (
    Decision,
    agent_config,
    agent_key,
    changes_system,
    explain,
    mount_key,
    needs_new_facts,
    plan,
    prepared_name,
)
from bootstrap.store.step import CHECK_S, store
from bootstrap.system.facts import UPDATE_UNITS
from tests.support.hosts import host_on
from tests.support.plans import FRESH, a_setup, as_json

names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
# Spaces, quotes, dollars: anything but what separates paths and accounts.
folders = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/:"), min_size=1, max_size=12)
homes = folders.map(lambda name: f"/home/{name}")
roots = st.one_of(folders.map(lambda name: f"~/{name}"), folders.map(lambda name: f"/srv/{name}"))
lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
archives = st.binary(max_size=20).map(Archive.of)
hexes = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)

MOUNTS = (
    Mount("nfs", "server:/data", "/mnt/data", "ro"),
    Mount("efs", "fs-1.efs.us-east-1.amazonaws.com:/", "/mnt/out"),
    Mount("filestore", "10.0.0.2:/vol1", "/mnt/filestore"),
    Mount("azure-files", "a.file.core.windows.net:/a/share", "/mnt/files"),
    Mount("lustre", "fs-2.fsx.us-east-1.amazonaws.com@tcp:/abc", "/mnt/lustre"),
    Mount("scratch", "", "/mnt/scratch"),
)

setups = st.builds(
    Setup,
    node=names,
    agent_config=st.dictionaries(st.sampled_from(["job", "checkpoints"]), homes).map(
        lambda value: json.dumps(value).encode()
    ),
    code=archives,
    trainer=archives,
    python=st.sampled_from(["python3", "/usr/bin/python3", "~/venv/bin/python"]),
    setup=st.none() | lines,
    root=roots,
    env=st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), lines),
    dead_man=st.booleans(),
    mounts=st.lists(st.sampled_from(MOUNTS), unique=True).map(tuple),
    lock=st.none() | st.builds(Lock, st.sampled_from(["requirements", "uv"]), st.just("r.txt"), hexes),
    cache=st.just("") | roots,
)
systems = st.builds(
    System,
    born=names,
    os=st.sampled_from(["", "debian", "ubuntu", "rocky"]),
    version=st.sampled_from(["22.04", "24.04", "12"]),
    systemd=st.sampled_from(["", "running", "degraded"]),
    root=st.booleans(),
    cloud_init=st.sampled_from(["done", "running", "disabled", "absent"]),
    locks=st.sampled_from([(), ("apt-get (7) holds /var/lib/dpkg/lock",)]),
    updaters=st.sampled_from([(), UPDATE_UNITS]),
    unheld=st.sampled_from([(), ("linux-image-aws",)]),
    clock=st.sampled_from(["synchronized", "waiting", "none", "unknown"]),
    dead_man=st.booleans(),
)
mount_facts = st.builds(
    MountFact,
    st.sampled_from([mount.source for mount in MOUNTS]),
    st.sampled_from(["nfs4", "nfs", "lustre", "ext4"]),
    st.sampled_from(["ro", "rw"]),
    st.booleans(),
)
all_mounts = st.builds(
    Mounts,
    found=st.dictionaries(st.sampled_from([mount.mountpoint for mount in MOUNTS]), mount_facts).map(
        lambda found: tuple(found.items())
    ),
    nfs=st.booleans(),
    lustre=st.booleans(),
    disks=st.sampled_from([(), ("/dev/nvme1n1",)]),
)
machines = st.builds(
    Facts,
    user=names,
    home=homes,
    boot_id=names,
    free_mb=st.integers(0, 10_000),
    python=st.sampled_from(["", "/usr/bin/python3"]),
    python_version=st.sampled_from([(3, 8, 1), (3, 11, 0), (3, 13, 2)]),
    torch=st.booleans(),
    codes=st.frozensets(hexes, max_size=2),
    trainers=st.frozensets(hexes, max_size=2),
    prepared=st.frozensets(hexes, max_size=2),
    agent=st.none() | st.builds(AgentFact, pid=st.integers(2, 99999), key=hexes),
    system=systems,
    mounts=all_mounts,
    environments=st.builds(Environments, uv=st.sampled_from(["", "/usr/bin/uv"])),
)


@st.composite
def own_machines(draw: st.DrawFn) -> tuple[Facts, Setup]:
    """A machine that was made for its node."""
    facts, setup = draw(machines), draw(setups)
    return replace(facts, system=replace(facts.system, born=setup.node)), setup


pure = settings(deadline=None, max_examples=50)  # a busy computer is no reason to fail


TYPES = {"lustre": "lustre", "filestore": "nfs", "scratch": "ext4"}


def prepared_machine(facts: Facts, setup: Setup) -> Facts:
    """The machine after a bootstrap that went well: every fact that a step looks at is as the step wants it."""
    found = {
        mount.mountpoint: MountFact(mount.source or "/dev/nvme1n1", TYPES.get(mount.kind, "nfs4"), mount.mode, True)
        for mount in setup.mounts
    }
    system = replace(facts.system, born=setup.node, root=True, cloud_init="done", locks=(), updaters=(), unheld=())
    facts = replace(
        facts,
        torch=True,
        system=replace(system, clock="synchronized", dead_man=True),
        mounts=replace(facts.mounts, found=tuple(found.items()), proof=mount_key(facts, setup)),
    )
    complete = {environment_name(facts, setup)} if setup.lock else set()
    facts = replace(facts, environments=replace(facts.environments, complete=frozenset(complete)))
    return replace(
        facts,
        codes=facts.codes | {setup.code.name},
        trainers=facts.trainers | {setup.trainer.name},
        prepared=facts.prepared | ({prepared_name(setup)} if setup.setup else set()),
        agent=AgentFact(4242, agent_key(facts, setup)),
    )


@pure
@given(machines, setups)
def test_nothing_is_left_to_do_on_a_machine_that_is_ready(facts: Facts, setup: Setup) -> None:
    for step in plan(prepared_machine(facts, setup), setup):
        own = bool(facts.python) and facts.python_version >= PYTHON_MIN
        unusable = step.name in ("interpreter", "environment") and setup.lock is None and not own
        assert isinstance(step.decision, Unfit if unusable else Skip)


# Commands that only scripts that run as root, on a machine that was made for the node, may contain.
CHANGES = re.compile(
    r"\b(sudo|runuser|apt-get|apt-mark|dpkg -i|mkfs|umount|modprobe|reboot|shutdown|chown"
    r"|(?<!-)mount -|systemctl (start|stop|restart|mask|unmask|enable|disable|daemon-reload|reset-failed|set-))"
)


@pure
@given(machines, setups)
def test_no_system_is_changed_but_that_of_a_machine_made_for_this_node(facts: Facts, setup: Setup) -> None:
    for step in plan(facts, setup):
        if facts.system.born != setup.node:
            assert not changes_system(step.decision)


@pure
@given(own_machines())
def test_a_script_that_changes_the_system_says_that_it_does(machine: tuple[Facts, Setup]) -> None:
    for step in plan(*machine):
        for command in step.decision if isinstance(step.decision, tuple) else ():
            if isinstance(command, Run) and not command.as_root and step.name not in ("code", "environment"):
                # A folder may be called like a command.
                script = command.script.replace(machine[1].root.removeprefix("~/"), "")
                assert not CHANGES.search(script), command.what


@pure
@given(own_machines())
def test_a_command_that_needs_new_facts_is_the_last_of_its_step(machine: tuple[Facts, Setup]) -> None:
    for step in plan(*machine):
        if isinstance(step.decision, tuple) and needs_new_facts(step.decision):
            assert isinstance(step.decision[-1], Again | Reboot)
            assert not needs_new_facts(step.decision[:-1])


def reboots(facts: Facts, setup: Setup) -> Decision:
    return (Reboot("for the test", 60.0),)


def decision_about_a_reboot(**system: Any) -> Decision:
    agent = system.pop("agent", None)
    facts = replace(FRESH, agent=agent, system=System(**{"born": "n1", "root": True, **system}))
    return plan(facts, a_setup(), [("reboot", reboots)])[0].decision


def test_a_machine_is_rebooted_only_if_it_is_ours_and_no_agent_runs() -> None:
    assert decision_about_a_reboot() == (Reboot("for the test", 60.0),)
    assert as_json(decision_about_a_reboot(born="n2")) == {
        "skip": "this machine was made for n2, not for n1: its system is left as it is"
    }
    assert as_json(decision_about_a_reboot(born="")) == {
        "skip": "this machine was not made for n1: its system is left as it is"
    }
    assert "an agent runs here, pid 7" in as_json(decision_about_a_reboot(agent=AgentFact(7, "k")))["skip"]
    assert "cannot become root" in as_json(decision_about_a_reboot(root=False))["unfit"]


@pure
@given(machines, setups)
def test_a_plan_is_the_same_each_time_and_its_steps_have_bounded_commands_or_a_reason(
    facts: Facts, setup: Setup
) -> None:
    planned = plan(facts, setup)
    assert planned == plan(facts, setup)
    for step in planned:
        if not isinstance(step.decision, Skip | Unfit):
            assert len(step.decision) > 0
            assert all(0 < command.timeout_s < 2 * 3600 for command in step.decision if isinstance(command, Run))


@pure
@given(machines, setups)
def test_a_running_agent_with_another_configuration_is_stopped_before_one_is_started(
    facts: Facts, setup: Setup
) -> None:
    decision = next(step.decision for step in plan(facts, setup) if step.name == "agent")
    if facts.agent and isinstance(decision, tuple):
        assert str(decision[0]).startswith("stop the agent")
        assert str(decision[-1]) == "start the agent"


@pure
@given(machines, setups)
def test_the_agent_is_restarted_when_its_configuration_trainer_or_environment_changed(
    facts: Facts, setup: Setup
) -> None:
    keys = {
        agent_key(facts, setup),
        agent_key(facts, replace(setup, trainer=Archive.of(setup.trainer.data + b"x"))),
        agent_key(facts, replace(setup, code=Archive.of(setup.code.data + b"x"))),
        agent_key(facts, replace(setup, env={**setup.env, "ANOTHER": "1"})),
        agent_key(facts, replace(setup, agent_config=b'{"job":"another one"}')),
        agent_key(facts, replace(setup, etcd_access=b'{"user":"another one"}')),
    }
    assert len(keys) == 6


def test_the_access_to_etcd_is_a_file_for_the_login_user_alone_and_only_where_etcd_asks_for_one() -> None:
    plain, secured = a_setup(), replace(a_setup(), etcd_access=b'{"password":"s3cret"}')
    found = {each.path: each for each in _commands(secured) if isinstance(each, Upload)}
    path = json.loads(agent_config(FRESH, secured))["etcd_access"]
    assert (found[path].mode, found[path].data) == (0o600, b'{"password":"s3cret"}')
    assert "etcd_access" not in json.loads(agent_config(FRESH, plain))
    assert path not in {each.path for each in _commands(plain) if isinstance(each, Upload)}
    assert "s3cret" not in explain(plan(FRESH, secured))
    assert "s3cret" not in repr(secured)


def _commands(setup: Setup) -> Sequence[Command]:
    decision = next(step.decision for step in plan(FRESH, setup) if step.name == "agent")
    assert isinstance(decision, tuple)
    return decision


def test_secrets_are_neither_in_a_plan_nor_in_a_repr() -> None:
    setup = a_setup(env={"TOKEN": "hunter2"}, agent_config=b'{"env":{"TOKEN":"hunter2"}}', setup="true")
    planned = plan(FRESH, setup)
    assert "hunter2" not in explain(planned) + repr(planned) + repr(setup)


def test_the_agent_reads_paths_that_only_the_node_knows() -> None:
    setup = a_setup(agent_config=b'{"job":"j","python":"","checkpoints":"~/ck","resume_from":["~/old","/b"]}')
    assert json.loads(agent_config(FRESH, setup)) == {
        "job": "j",
        "python": "/usr/bin/python3",
        "code_dir": f"/home/u/.spotsup/code/{setup.code.name}",
        "run_dir": "/home/u/.spotsup/nodes/n1/run",
        "log_dir": "/home/u/.spotsup/nodes/n1/log",
        "checkpoints": "/home/u/ck",
        "resume_from": ["/home/u/old", "/b"],
    }


def test_the_object_store_is_written_to_once() -> None:
    setup = a_setup(agent_config=b'{"job":"j","checkpoints":"s3://bucket/prefix"}', env={"AWS_REGION": "eu-west-1"})
    upload, run = store(FRESH, setup)  # type: ignore[misc]  # two commands
    assert isinstance(run, Run)
    assert str(upload).startswith("upload the environment")
    assert (str(run), run.timeout_s > CHECK_S) == ("write to s3://bucket/prefix", True)
    assert "url=s3://bucket/prefix" in run.script
    assert "eu-west-1" not in run.script
    marker = re.findall(r"marker=(store-[0-9a-f]{32})", run.script)
    after = replace(FRESH, prepared=frozenset(marker))
    assert store(after, setup) == Skip("s3://bucket/prefix takes a write")
    assert store(replace(after, boot_id="another"), setup) != store(after, setup)
    for elsewhere in (b'{"job":"j","checkpoints":"/mnt/out"}', b'{"job":"j"}'):
        assert store(FRESH, a_setup(agent_config=elsewhere)) == Skip("checkpoints go to no object store")


def test_a_dry_run_shows_what_is_done_what_is_left_and_what_is_impossible() -> None:
    text = explain(plan(replace(FRESH, codes=frozenset({a_setup().code.name}), torch=False), a_setup()))
    assert "code: nothing to do: code " in text
    assert "environment: impossible: /usr/bin/python3 cannot import torch; install it in the image" in text
    assert '    | setsid /bin/sh "$own/agent.sh"' in text


def test_a_dry_run_shows_what_runs_as_root() -> None:
    facts = replace(FRESH, system=System(born="n1", root=True, unheld=("linux-image-aws",)))
    text = explain(plan(facts, a_setup()))
    assert "hygiene:\n  hold linux-image-aws (as root)\n    | " in text
    assert "apt-mark hold linux-image-aws" in text


def test_an_environment_depends_on_lock_interpreter_and_system() -> None:
    lock = Lock("requirements", "r.txt", "0" * 64)
    setup = a_setup(lock=lock)
    first = environment_name(FRESH, setup)
    others = {
        environment_name(FRESH, replace(setup, lock=replace(lock, sha256="1" * 64))),
        environment_name(FRESH, replace(setup, lock=replace(lock, kind="uv"))),
        environment_name(replace(FRESH, python_version=(3, 12, 2)), setup),
        environment_name(replace(FRESH, python="/opt/python3"), setup),
        environment_name(replace(FRESH, system=System(os="ubuntu", version="24.04")), setup),
        environment_name(replace(FRESH, environments=Environments(machine="aarch64")), setup),
    }
    assert first not in others
    assert len(others) == 6
    assert environment_name(replace(FRESH, boot_id="another", home="/home/v"), setup) == first


def test_the_agent_trains_with_the_environment() -> None:
    setup = a_setup(lock=Lock("requirements", "r.txt", "0" * 64), cache="/mnt/out/environments")
    assert json.loads(agent_config(FRESH, setup))["python"] == python_of(FRESH, setup)
    assert python_of(FRESH, setup).startswith("/mnt/out/environments/")


LOCK = Lock("uv", "uv.lock", "0" * 64, ">=3.11")
ON_A_MOUNT = {"python": "/mnt/out/venv/bin/python", "mounts": (MOUNTS[1],)}


@pytest.mark.parametrize(
    ("version", "changes", "decision"),
    [
        ((3, 10, 12), {}, Skip("/usr/bin/python3 is Python 3.10.12")),
        ((3, 10, 12), {"lock": LOCK}, "and the lock needs >=3.11; uv brings Python 3.12"),
        ((3, 12, 3), {"lock": LOCK}, Skip("/usr/bin/python3 is Python 3.12.3")),
        ((3, 8, 10), {}, "is Python 3.8.10, and the job needs 3.9 or newer; use a newer machine image"),
        ((), {}, "'python3' is no interpreter that runs on this machine"),
        ((), ON_A_MOUNT, Skip("/mnt/out/venv/bin/python is looked for once /mnt/out is mounted")),
        ((), {"lock": replace(LOCK, requires_python=">=3.14")}, "uv brings Python >=3.14"),
    ],
)
def test_the_interpreter_is_checked_before_anything_of_the_gpu(
    version: tuple[int, ...], changes: dict[str, Any], decision: Skip | str
) -> None:
    facts = replace(FRESH, python="/usr/bin/python3" if version else "", python_version=version)
    steps = plan(facts, a_setup(**changes))
    names = [step.name for step in steps]
    assert names.index("interpreter") < names.index("gpu")
    found = next(step.decision for step in steps if step.name == "interpreter")
    if isinstance(decision, Skip):
        assert found == decision
    else:
        assert isinstance(found, Skip if "lock" in changes else Unfit)
        assert decision in found.reason


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"node": "../n1"}, r"node is '\.\./n1'; use letters"),
        ({"node": ""}, "node is ''"),
        ({"root": "spots"}, "use an absolute path or one that begins with ~/"),
        ({"root": "~bob/spots"}, "use an absolute path"),
        ({"root": "/a\nb"}, "use an absolute path"),
        ({"root": "/a:b"}, "use an absolute path .* without `:`"),
        ({"env": {"A-B": "1"}}, "'A-B' is not a variable name"),
        ({"env": {"A": "x\0y"}}, "the value of A contains a NUL"),
        ({"setup": "echo \0"}, "contains a NUL"),
        ({"agent_config": b"[]"}, "agent_config is not a JSON object"),
        ({"agent_config": b"{"}, "Expecting property name"),
        ({"cache": "cache"}, "cache is 'cache'; use an absolute path"),
        (
            {"mounts": (MOUNTS[0], replace(MOUNTS[1], mountpoint="/mnt/data"))},
            "two file systems .* the same mountpoint",
        ),
        ({"mounts": (MOUNTS[-1], replace(MOUNTS[-1], mountpoint="/mnt/more"))}, "a machine has one scratch"),
        ({"mounts": tuple(Mount("nfs", "s:/", f"/mnt/{n}") for n in range(9))}, "9 file systems are more than the 8"),
    ],
)
def test_an_invalid_setup_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        a_setup(**changes)


@pytest.mark.parametrize(
    ("mount", "complaint"),
    [
        (("nfs", "server:/x", "mnt"), "'mnt' is not a mountpoint; use an absolute path"),
        (("nfs", "server:/x", "/mnt/../etc"), "is not a mountpoint"),
        (("nfs", "server:/x", "/mnt/a b"), "is not a mountpoint"),
        (("nfs", "server:/x", "/mnt/"), "is not a mountpoint"),
        (("nfs", "server:/x", "/"), "is not a mountpoint"),
        (("nfs", "server:/x", "/usr/local"), "/usr/local is reserved for the machine itself; mount below /mnt"),
        (("nfs", "server:/x", "/home/ubuntu"), "is reserved"),
        (("nfs", "server:/x", "/tmp"), "is reserved"),
        (("nfs", "/local", "/mnt/x"), "'/local' cannot be mounted at /mnt/x; write it as server:/path"),
        (("nfs", "server:/x; reboot", "/mnt/x"), "cannot be mounted"),
        (("nfs", "-o:/x y", "/mnt/x"), "cannot be mounted"),
        (("lustre", "server:/x", "/mnt/x"), "write it as fs-0a1b2c3d.fsx.us-east-1.amazonaws.com@tcp:/name"),
        (("scratch", "server:/x", "/mnt/x"), "scratch is the machine's own disk: it has no source"),
        (("scratch", "", "/mnt/x", "ro"), "its mode is rw"),
    ],
)
def test_an_invalid_mount_is_refused(mount: tuple[Any, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Mount(*mount)


def test_a_computer_behind_a_test_cloud_stands_in_for_a_machine_with_gpus() -> None:
    planned = plan(FRESH, a_setup(host=host_on("aws", "T4", 1)))
    found = {step.name: as_json(step.decision) for step in planned if step.name.startswith("gpu")}
    assert found == {
        "gpu": {"skip": "this machine has no GPU and was not made for n1: it stands in for one that has"},
        "gpu-check": {"skip": "this machine has no GPU to compute on"},
    }
    made_for_it = plan(replace(FRESH, system=System(born="n1", root=True)), a_setup(host=host_on("aws", "T4", 1)))
    assert "none on the PCI bus" in next(as_json(step.decision)["unfit"] for step in made_for_it if step.name == "gpu")


def test_a_mount_below_another_comes_after_it() -> None:
    setup = a_setup(mounts=(Mount("nfs", "s:/b", "/mnt/a/b"), Mount("nfs", "s:/a", "/mnt/a")))
    facts = replace(FRESH, system=System(born="n1", root=True), mounts=Mounts(nfs=True))
    decision = next(step.decision for step in plan(facts, setup) if step.name == "mounts")
    assert isinstance(decision, tuple)
    assert [str(command) for command in decision[:2]] == ["mount s:/a at /mnt/a", "mount s:/b at /mnt/a/b"]
    assert isinstance(decision[-1], Again)
