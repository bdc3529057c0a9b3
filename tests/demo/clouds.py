"""The clouds that the demo runs on, and how it preempts and kills their machines: local, and the test clouds.

A test cloud runs in the demo's own process and speaks the real cloud's API; spotsupd talks to it through the real SDK.
Its machines are a local cloud's in the stack's own folder, where `Stack.close` finds and ends them even if the demo was
killed.
"""

from __future__ import annotations

import getpass
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from pydantic import ValidationError

from provisioners.localcloud.control import ServerError
from provisioners.settings import CloudSettings
from tools.stack import Stack, StackError

if TYPE_CHECKING:
    from tests.clouds.base import CloudServer, Record
    from tests.clouds.machines import RealMachines

# Prefixes of variables with the user's own accounts: none of them reaches the demo's daemon or the test cloud.
ACCOUNTS = ("AWS_", "AZURE_", "ARM_", "GOOGLE_", "GCE_", "CLOUDSDK_", "BOTO_")
DIRECT = {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}


class CloudControl(Protocol):
    """Preempts and kills machines of one cloud. Nodes are named by their spotsup id."""

    name: str
    introduction: str
    """What the daemon talks to."""
    job: str
    """What a job file says for this cloud, beside the rest."""
    slowness_s: float
    """How long after a notice the machine's agent may see it: how often it asks this cloud's metadata service."""

    def preempt(self, node: str, notice_s: float) -> float:
        """Announce a preemption through the machine's metadata service; returns when it was announced (UNIX s)."""
        ...

    def kill(self, node: str) -> None:
        """End the machine without notice."""
        ...

    def left(self) -> list[str]:
        """What the cloud still bills."""
        ...

    def calls(self) -> Counter[str]:
        """Calls per action of the cloud's API; empty where they are not counted."""
        ...


class LocalControl:
    """The local cloud, through its command line."""

    name = "local"
    introduction = "its local cloud"
    job = ""
    slowness_s = 0.0

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    def preempt(self, node: str, notice_s: float) -> float:
        """See CloudControl."""
        announced = self._stack.cloud("preempt", node, "--notice", str(notice_s))
        return float(announced["preempt_at"]) - notice_s

    def kill(self, node: str) -> None:
        """See CloudControl."""
        self._stack.cloud("kill", node)

    def left(self) -> list[str]:
        """See CloudControl."""
        return [str(machine["id"]) for machine in self._stack.machines()]

    def calls(self) -> Counter[str]:
        """Not counted."""
        return Counter()


@dataclass(frozen=True, slots=True)
class Kind:
    """What differs between the test clouds."""

    title: str
    sdk: str
    # How often the agent asks this cloud's metadata service; Google's answers at the moment of the notice.
    slowness_s: float


KINDS = {
    "aws": Kind("EC2", "boto3", 2.0),
    "gcp": Kind("Compute Engine", "google-cloud-compute", 0.0),
    "azure": Kind("Azure", "azure-mgmt-compute", 1.5),
}


class HandOnTestCloud:
    """The controls of a test cloud."""

    def __init__(self, name: str, server: CloudServer, machines: RealMachines) -> None:
        kind = KINDS[name]
        self.name, self.slowness_s = name, kind.slowness_s
        self.job = f"resources: {{gpu: T4, gpus_per_node: 1}}\nplacement: {{cloud: {name}}}\n"
        # Its machines have one folder in common, which is no `storage`: the program names it itself.
        self.job += "checkpoints: none\n"
        self.introduction = (
            f"{kind.title}'s test cloud at {server.url}: {kind.title}'s API and the real SDK ({kind.sdk}), "
            f"but [bold]not the real {kind.title}[/bold]"
        )
        self.url = server.url
        self._cloud = server.cloud
        self._machines = machines

    def preempt(self, node: str, notice_s: float) -> float:
        """Announced to the machine alone, not by the API: so the agent must have read it."""
        at = time.time()
        self._machines.preempt(self._record(node).machine, notice_s)
        return at

    def kill(self, node: str) -> None:
        """Its host breaks. Azure bills the VM, which stops, until the daemon deletes it."""
        if self.name == "azure":
            self._cloud.stop(self._record(node).name)
        else:
            self._cloud.lose(self._record(node).name)

    def left(self) -> list[str]:
        """See CloudControl."""
        with self._cloud.fleet.lock:
            return list(self._cloud.fleet.left())

    def machines(self) -> list[str]:
        """The machines among it."""
        with self._cloud.fleet.lock:
            return [each.name for each in self._cloud.fleet.alive()]

    def calls(self) -> Counter[str]:
        """See CloudControl."""
        return Counter(self._cloud.counted())

    def lose_answer(self) -> None:
        """The next launch succeeds, and its answer is lost."""
        self._cloud.fail_next(self._cloud.launch, "drop-reply")

    def deny(self, *actions: str) -> None:
        """From now on the daemon's credentials permit all actions but these."""
        self._cloud.denied = set(actions)

    def _record(self, node: str) -> Record:
        with self._cloud.fleet.lock:
            found = [each for each in self._cloud.fleet.alive() if each.tags.get("spotsup-node") == node]
        if len(found) != 1:
            raise StackError(f"node {node} has {len(found)} machines that run, and not one")
        return cast("Record", found[0])


@contextmanager
def _test_cloud(name: str, stack: Stack) -> Iterator[CloudControl]:
    # moto reads it in this process when it creates its first backend; it would load hundreds of unused images.
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
    from tests.clouds.base import wire_cloud
    from tests.clouds.machines import real_machines

    with real_machines(stack.cloud_dir) as machines, wire_cloud(name, machines) as server:
        settings = server.settings(ssh_user=getpass.getuser(), ssh_port=machines.ssh_port)
        _configure(stack, name, settings, server.environ)
        yield HandOnTestCloud(name, server, machines)


@contextmanager
def _local(stack: Stack) -> Iterator[CloudControl]:
    yield LocalControl(stack)


CLOUDS: Mapping[str, Callable[[Stack], AbstractContextManager[CloudControl]]] = {
    "local": _local,
    **{name: partial(_test_cloud, name) for name in KINDS},
}


@contextmanager
def opened(name: str, stack: Stack) -> Iterator[CloudControl]:
    """Open the cloud of this name and configure the daemon for it; the stack is prepared and has no daemon yet.

    `Stack.close` comes before the end of this. Raises StackError where the cloud does not start.
    """
    with ExitStack() as opening:
        if name != LocalControl.name:
            _forget_accounts()
        try:
            control = opening.enter_context(CLOUDS[name](stack))
        except ServerError as error:
            raise StackError(f"the machines of the test cloud do not start: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]  # the user name is the only value that is not ours
            raise StackError(f"{first['loc'][0]} {first['input']!r} is none for {name}: {first['msg']}") from error
        yield control


def _forget_accounts() -> None:
    """Remove account variables from this process and its children; no proxy is asked for loopback addresses."""
    for key in [key for key in os.environ if key.startswith(ACCOUNTS)]:
        del os.environ[key]
    os.environ.update(DIRECT)


def _configure(stack: Stack, cloud: str, settings: CloudSettings, environ: Mapping[str, str]) -> None:
    """Configure this cloud and no other. The machines are on loopback addresses, so gloo uses that interface."""
    values = settings.model_dump(mode="json", exclude_defaults=True)
    lines = [
        "[local]",
        "enabled = false",
        "[node.env]",
        'GLOO_SOCKET_IFNAME = "lo"',
        f"[{cloud}]",
    ]
    lines += [f"{key} = {to_toml(value)}" for key, value in values.items()]
    python = f"python = {to_toml(sys.executable)}\n"
    stack.configure("\n".join(lines) + "\n", {**os.environ, **environ}, node=python)


def to_toml(value: Any) -> str:
    """A value in TOML; its strings, numbers and booleans are JSON's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {to_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    return json.dumps(value)
