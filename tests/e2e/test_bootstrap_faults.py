"""Faults on a node, their errors, and what happens to the node: the table of docs/reference/nodes.md.

Real steps over real SSH, on a sandbox where every step has something to do: tests/support/faulty_ssh.py.
To rewrite the table: SPOTSUP_WRITE_GOLDEN=1.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bootstrap import BootstrapError, Setup, SshHost, StepEvent, StepState, bootstrap
from bootstrap.mounts.model import Mount
from bootstrap.steps import STEPS
from supervisor.nodes.prepare import outcome_of
from supervisor.planner.actions import BootstrapDone
from tests.support.agents import CODE, TRAINER
from tests.support.disks import Full, memory
from tests.support.faulty_ssh import Machine, machine_with_sshd
from tests.support.hosts import host_on
from tests.support.machines import new_key, wait_for
from tests.support.programs import free_ports

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "nodes.md"
TIME_S = 900.0  # for all of a bootstrap: the default of timing.bootstrap_timeout_s
HELD, REPLACED, OF_JOB, UNHEALTHY, FOREIGN = (
    "tried again until `timing.bootstrap_timeout_s` is over",
    "replaced",
    "replaced; the same on a second machine ends a job that never trained",
    "replaced; three of a type in a row: `machine-type-blocked`",
    "replaced, with the alert `foreign-host`",
)

TRIED = {name for name, _ in STEPS} - {
    "interpreter",  # runs no command of its own: it judges the facts
    *("container", "log-agent"),  # the sandbox wants none
    "reach",  # integration/test_reach.py
    "store",  # e2e/test_object_store.py
}

Arrange = Callable[[Machine], None]


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    what: str
    step: str
    """"" for before the first step."""
    error: str
    """With … for text that differs."""
    outcome: str
    arrange: Arrange
    within_s: float = TIME_S
    target: Callable[[SshHost], SshHost] = lambda target: target
    full: str = ""
    """The step in which the disk fills up."""


# -- the machine -------------------------------------------------------------------------------------------

SMI = r"""
case "$*" in
-pm*) touch "$BOX/state/persistent" ;;
*)
    mode=Disabled
    [ ! -e "$BOX/state/persistent" ] || mode=Enabled
    echo "0, Tesla T4, GPU-1, 580.95.05, 15360, 0, $mode"
    ;;
esac
"""
# Amazon's archive is an installer, which brings a kernel module, libfabric and NCCL's plugin.
CURL = r"""
mkdir aws-efa-installer
cat >aws-efa-installer/efa_installer.sh <<END
#!/bin/sh
mkdir -p "$BOX/sys/module/efa" "$BOX/opt/amazon/efa/bin"
echo "EFA installer version: 1.43.2" >"$BOX/opt/amazon/efa_installed_packages"
cp "$BOX/bin/sudo" "$BOX/opt/amazon/efa/bin/fi_info"
END
chmod 755 aws-efa-installer/efa_installer.sh
tar -czf efa.tar.gz aws-efa-installer
"""


def with_all_to_do(machine: Machine) -> None:
    """Every step finds something to do. The login shell prints, as many do."""
    (machine.home / ".bashrc").write_text("printf 'Welcome!'\n")
    machine.write("state/kernels", "linux-image-cloud-amd64\n")
    for name, values in {"1e": ("0x10de", "0x1eb8", "0x030200"), "1f": ("0x1d0f", "0xefa1", "0x020000")}.items():
        for key, value in zip(("vendor", "device", "class"), values, strict=True):
            machine.write(f"sys/bus/pci/devices/0000:00:{name}.0/{key}", f"{value}\n")
    module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    machine.write("proc/driver/nvidia/version", module)
    machine.program("nvidia-smi", SMI)
    machine.program("dmesg", "")
    machine.program("curl", CURL)
    machine.program("ldconfig", 'echo "libnccl-net.so (libc6,x86-64) => /opt/amazon/lib/libnccl-net.so"')
    machine.program("of-the-job", "")
    machine.program("python3", f'case "$*" in *torch.cuda*) exit ;; esac\nexec {shlex.quote(sys.executable)} "$@"')


def setup_of(machine: Machine, root: str = "~/.spotsup") -> Setup:
    out = f"{machine.box}/mnt/out"
    return Setup(
        node="n1",
        agent_config=f'{{"checkpoints":"{out}/ck"}}'.encode(),
        code=CODE,
        trainer=TRAINER,
        python=f"{machine.box}/bin/python3",
        setup="of-the-job",
        root=root,
        host=host_on("aws", "T4", 1),
        mounts=(Mount("nfs", "server:/out", out),),
    )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with machine_with_sshd(tmp_path) as made:
        with_all_to_do(made)
        yield made


def resources() -> tuple[int, int]:
    """How many threads and sockets this process has."""
    sockets = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            sockets += str(each.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return threading.active_count(), sockets


def failure(machine: Machine, fault: Fault, setup: Setup) -> BootstrapDone:
    """The outcome that the planner gets. No thread or socket of ours is left."""

    def on_step(event: StepEvent) -> None:
        if event.state is StepState.BEGUN and event.step == fault.full:
            Full(Path(setup.root)).inject()

    target, before = fault.target(machine.target), resources()
    with pytest.raises(BootstrapError) as caught:
        bootstrap(target, setup, clock=machine.clock, deadline_s=fault.within_s, on_step=on_step)
    assert (caught.value.node, caught.value.step) == ("n1", fault.step)
    wait_for(
        lambda: all(now <= then for now, then in zip(resources(), before, strict=True)), "our threads and sockets end"
    )
    return outcome_of("n1", caught.value)


def verdict(done: BootstrapDone) -> str:
    if done.of_job:
        return OF_JOB
    return HELD if done.unreachable else UNHEALTHY if done.unhealthy else FOREIGN if done.foreign else REPLACED


def matches(error: str, sentence: str) -> bool:
    return re.fullmatch(".+?".join(map(re.escape, error.split("…"))), sentence) is not None


def left_behind(machine: Machine) -> list[str]:
    """Files that are half written or half unpacked."""
    found = [*machine.box.rglob("*.part"), *machine.box.rglob(".unpack.*")]
    return [str(path) for path in found]


# -- nothing goes wrong ------------------------------------------------------------------------------------


def test_every_step_has_something_to_do_and_then_has_not(machine: Machine) -> None:
    first = bootstrap(machine.target, setup_of(machine), clock=machine.clock, deadline_s=TIME_S)
    assert {event.step for event in first.steps if event.state is StepState.DONE} == TRIED
    second = bootstrap(machine.target, setup_of(machine), clock=machine.clock, deadline_s=TIME_S)
    assert not second.changed, second.steps
    assert left_behind(machine) == []


# -- at each step, one after the other -----------------------------------------------------------------------

# What hangs in each step: the step, the name of the command, the program and its arguments (a pattern of sh).
HANGING = (
    ("facts", "gather facts", "uname", "-r"),
    ("hygiene", "hold linux-image-cloud-amd64", "apt-mark", "hold*"),
    ("gpu", "keep the driver loaded (persistence mode)", "nvidia-smi", "-pm*"),
    ("network", "install EFA's software: its kernel module is not loaded", "curl", "*efa*"),
    ("mounts", "mount server:/out at …/mnt/out", "mount", "*server:/out*"),
    ("code", "unpack the code (… bytes)", "sha256sum", "*"),
    ("code", "unpack the code (… bytes)", "tar", "*code*"),
    ("trainer", "unpack the trainer (… bytes)", "tar", "*trainer*"),
    ("environment", "of-the-job", "of-the-job", "*"),
    ("gpu-check", "compute on 1 T4", "python3", "*torch.cuda*"),
    ("agent", "start the agent", "systemctl", "start*"),
)
HANGS = Fault("a command or the machine hangs", "any", "`…` did not end within … s", REPLACED, lambda _: None)
BREAKS = Fault("the connection breaks", "any", "the connection broke while `…` ran", HELD, lambda _: None)


@pytest.mark.nightly
def test_a_hanging_command_is_given_up_in_each_step_and_the_next_bootstrap_goes_on_there(machine: Machine) -> None:
    at_each_step(machine, HANGS, machine.much_later)


def test_a_connection_that_breaks_in_each_step_is_tried_again_and_goes_on_there(machine: Machine) -> None:
    at_each_step(machine, BREAKS, machine.wire.reset)


def at_each_step(machine: Machine, fault: Fault, on_fault: Callable[[], None]) -> None:
    assert {step for step, *_ in HANGING} == TRIED | {"facts"}
    for step, command, program, arguments in HANGING:
        machine.hang(program, arguments, on_fault)
        done = failure(machine, replace(fault, step=step, within_s=1e5), setup_of(machine))
        error = f"node n1, step {step}: {fault.error.replace('`…`', f'`{command}`')}"
        assert matches(error, done.error.splitlines()[0]), done.error
        # The machine itself is at fault: nothing of the job's was tried yet.
        machine_fault = fault.outcome is REPLACED and step in ("facts", "hygiene", "gpu", "network")
        assert verdict(done) == (UNHEALTHY if machine_fault else fault.outcome), step
        machine.repair()
    assert bootstrap(machine.target, setup_of(machine), clock=machine.clock, deadline_s=TIME_S).changed
    assert not bootstrap(machine.target, setup_of(machine), clock=machine.clock, deadline_s=TIME_S).changed
    assert left_behind(machine) == []


# -- the rest, one machine each ------------------------------------------------------------------------------


def nothing(_: Machine) -> None:
    """The fault is not on the machine."""


def fast_clock(machine: Machine) -> None:
    """A minute is over after a few reads of the clock."""
    machine.read_costs_s = 10.0


def no_port(target: SshHost) -> SshHost:
    return replace(target, port=free_ports(1)[0])


def program(name: str, text: str) -> Arrange:
    return lambda machine: machine.program(name, text)


def state(name: str) -> Arrange:
    def arrange(machine: Machine) -> None:
        machine.write(f"state/{name}", "")

    return arrange


def login_shell(bashrc: str) -> Arrange:
    def arrange(machine: Machine) -> None:
        (machine.home / ".bashrc").write_text(f"{bashrc}\n")

    return arrange


def rebooting_for_ever(machine: Machine) -> None:
    """The boot id does not change after a reboot."""
    machine.program("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    machine.program("systemctl", 'case "$*" in *reboot*) touch "$BOX/state/down" ;; *running*) echo running ;; esac')
    machine.program("cat", '[ ! -e "$BOX/state/down" ] || touch "$BOX/state/fault"\nexec /bin/cat "$@"')
    machine.on_fault = machine.much_later


FAULTS = (
    Fault(
        "the connection is refused until the end",
        "",
        "sshd at … did not answer in time: …Unable to connect to port …",
        HELD,
        nothing,
        within_s=0.7,
        target=no_port,
    ),
    Fault(
        "the connection is reset until the end",
        "",
        "sshd at … did not answer in time: …",
        HELD,
        lambda machine: machine.wire.refuse_all(),
        within_s=0.7,
    ),
    Fault(
        "sshd accepts connections and is silent until the end",
        "",
        "sshd at … did not answer in time: …",
        HELD,
        lambda machine: machine.wire.stall(),
        within_s=0.7,
    ),
    Fault(
        "our key is refused for a minute",
        "",
        "… refuses our key (Authentication failed.); does its image run cloud-init, which gives … this key?",
        HELD,
        fast_clock,
        target=lambda target: replace(target, client_key_openssh=new_key().private_openssh),
    ),
    Fault(
        "the host key is not the one given at launch",
        "",
        "… has the host key SHA256:…, not SHA256:… as it was given at its launch; "
        "another machine answers at this address",
        FOREIGN,
        nothing,
        target=lambda target: replace(target, host_key_public=new_key().public),
    ),
    Fault(
        "the image lets another user in",
        "login",
        'the login shell of … ends before our command, with status 142: Please login as the user "ubuntu" rather '
        'than the user "root"; set `ssh_user = "ubuntu"`',
        OF_JOB,
        login_shell("""echo 'Please login as the user "ubuntu" rather than the user "root".'; exit 142"""),
    ),
    Fault(
        "the login shell ends where it has no terminal",
        "login",
        "the login shell of … ends before our command, with status 0: not interactive, bye; it must leave commands "
        "without a terminal alone",
        OF_JOB,
        login_shell("echo 'not interactive, bye'; exit 0"),
    ),
    Fault(
        "the login shell reads",
        "login",
        "the login shell of … reads what is sent to our command: Proceed?; it must leave commands without a "
        "terminal alone",
        OF_JOB,
        login_shell("echo 'Proceed?'; read -t 2 -n 1 line"),
    ),
    Fault(
        "apt is broken",
        "hygiene",
        "`hold linux-image-cloud-amd64` ended with status 100: E: dpkg was interrupted, you must manually run …",
        UNHEALTHY,
        program(
            "apt-mark", "echo \"E: dpkg was interrupted, you must manually run 'dpkg --configure -a'\" >&2; exit 100"
        ),
    ),
    Fault(
        "an unhealthy GPU",
        "gpu",
        "the GPU at 0000:00:1e is unhealthy: Xid 79, fell off the bus; another machine is needed",
        UNHEALTHY,
        program("dmesg", "echo 'NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus.'"),
    ),
    Fault(
        "the machine does not come back from a reboot",
        "reboot",
        "the machine did not come back within 600 s",
        UNHEALTHY,
        rebooting_for_ever,
    ),
    Fault(
        "the package server cannot be reached",
        "mounts",
        "`install the NFS client` ended with status 100: E: Unable to locate package nfs-common",
        REPLACED,
        program("apt-get", "echo 'E: Unable to locate package nfs-common' >&2; exit 100"),
    ),
    Fault(
        "the file server refuses the mount",
        "mounts",
        "`mount server:/out at …` ended with status 1: server:/out cannot be mounted at …: mount ended with status 32",
        REPLACED,
        state("mount-fails"),
    ),
    Fault(
        "checkpoints cannot be written",
        "mounts",
        "`prove that … takes a file` ended with status 1: …",
        REPLACED,
        program("sync", "echo 'sync: Input/output error' >&2; exit 1"),
    ),
    Fault(
        "`setup` fails",
        "environment",
        "`of-the-job` ended with status 7: no such package: nope",
        OF_JOB,
        program("of-the-job", "echo 'no such package: nope'; exit 7"),
    ),
    Fault(
        "`setup` fails by the network",
        "environment",
        "`of-the-job` ended with status 6: curl: (6) Could not resolve host: pypi.org",
        REPLACED,
        program("of-the-job", "echo 'curl: (6) Could not resolve host: pypi.org'; exit 6"),
    ),
    Fault(
        "torch cannot compute on the GPUs",
        "gpu-check",
        "`compute on 1 T4` ended with status 1: torch 2.9 (CUDA 13.0) cannot compute on the GPUs: CUDA error",
        REPLACED,
        program(
            "python3",
            'case "$*" in *torch.cuda*) echo "torch 2.9 (CUDA 13.0) cannot compute on the GPUs: CUDA error" >&2; '
            f'exit 1 ;; esac\nexec {shlex.quote(sys.executable)} "$@"',
        ),
    ),
    Fault(
        "the agent ends at once",
        "agent",
        "`start the agent` ended with status 1: the agent ended at once, with status 1",
        REPLACED,
        program("systemctl", 'case "$*" in *is-active*) exit 3 ;; *show*) echo 1 ;; *running*) echo running ;; esac'),
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_is_one_sentence_and_leaves_nothing(machine: Machine, fault: Fault) -> None:
    fault.arrange(machine)
    done = failure(machine, fault, setup_of(machine))
    where = f"node n1, step {fault.step}: " if fault.step else "node n1: "
    assert matches(where + fault.error, done.error.splitlines()[0]), done.error
    assert verdict(done) == fault.outcome
    assert left_behind(machine) == []
    wait_for(lambda: set(machine.processes().values()) <= {"sleep"}, "only what hangs is left")


FULL = (
    Fault("the disk is full", "code", "… MB are free below …; unpacking the code needs 64", REPLACED, nothing),
    Fault(
        "the disk fills up during the step",
        "code",
        "`unpack the code (… bytes)` ended with status 1: …No space left on device",
        REPLACED,
        nothing,
        full="code",
    ),
    Fault(
        "the disk fills up during the step",
        "agent",
        "`upload the agent's configuration (… bytes) to …` ended with status 1: …No space left on device",
        REPLACED,
        nothing,
        full="agent",
    ),
)


@pytest.mark.parametrize("fault", FULL, ids=lambda fault: f"{fault.what} {fault.step}")
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, fault: Fault) -> None:
    with (
        memory(tmp_path, 16 if fault.what == "the disk is full" else 80) as disk,
        machine_with_sshd(tmp_path) as machine,
    ):
        with_all_to_do(machine)
        done = failure(machine, fault, setup_of(machine, str(disk)))
        assert matches(f"node n1, step {fault.step}: {fault.error}", done.error.splitlines()[0]), done.error
        assert verdict(done) == fault.outcome
        assert [*disk.rglob("*.part"), *disk.rglob(".unpack.*")] == []
        machine.kill_processes()


# -- the document ---------------------------------------------------------------------------------------------


def rows() -> Iterator[str]:
    """The table. Errors are without their beginning: the node and the step."""
    yield "| what goes wrong | in step | error | what happens to the node |"
    yield "|---|---|---|---|"
    order = ["", "login", *(name for name, _ in STEPS), "reboot", "any"]
    for fault in sorted((*FAULTS, *FULL, HANGS, BREAKS), key=lambda fault: order.index(fault.step)):
        yield f"| {fault.what} | {fault.step or 'before the first'} | {fault.error} | {fault.outcome} |"


def test_the_document_has_this_table() -> None:
    text, table = DOCUMENT.read_text(encoding="utf-8"), "\n".join(rows())
    if os.environ.get("SPOTSUP_WRITE_GOLDEN"):
        begins = text.index("| what goes wrong |")
        DOCUMENT.write_text(text[:begins] + table + text[text.index("\n\n", begins) :], encoding="utf-8")
        return
    assert f"\n\n{table}\n\n" in text
