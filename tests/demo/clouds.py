"""The clouds that the demo runs on, and how it preempts and kills their machines: local, and the test clouds.

A test cloud runs in the demo's own process and speaks the real cloud's API; spotsupd talks to it through the real SDK.
Its machines are a local cloud's in the stack's own folder, where `Stack.close` finds and ends them even if the demo was
killed.
"""

from __future__ import annotations

import getpass
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import ValidationError

from provisioners.aws.settings import AwsSettings
from provisioners.gcp.settings import GcpSettings
from provisioners.localcloud.control import ServerError
from provisioners.settings import CloudSettings
from tools.stack import Stack, StackError

Record = TypeVar("Record")

if TYPE_CHECKING:
    from tests.clouds.aws import AwsServer
    from tests.clouds.aws_instances import Record as AwsRecord
    from tests.clouds.azure import AzureServer
    from tests.clouds.azure_machines import Record as AzureRecord
    from tests.clouds.gcp import GcpServer
    from tests.clouds.gcp_instances import Record as GcpRecord
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


class CountingCloud(Protocol):
    """What the test clouds' servers have in common."""

    def counted(self) -> Counter[str]:
        """Calls per action."""
        ...

    def fail_next(self, action: str, how: str, times: int = 1) -> None:
        """Inject faults into the next calls of an action."""
        ...


class HandOnTestCloud(CloudControl):
    """What the controls of the test clouds have in common."""

    launch: str
    """The action that makes a machine."""

    def __init__(self, cloud: CountingCloud, machines: RealMachines) -> None:
        self._counting = cloud
        self._machines = machines
        self.job = f"resources: {{gpu: T4, gpus_per_node: 1}}\nplacement: {{cloud: {self.name}}}\n"

    def preempt(self, node: str, notice_s: float) -> float:
        """Announced to the machine alone, not by the API: so the agent must have read it."""
        at = time.time()
        self._machines.preempt(self.machine(node), notice_s)
        return at

    def calls(self) -> Counter[str]:
        """See CloudControl."""
        return self._counting.counted()

    def lose_answer(self) -> None:
        """The next launch succeeds, and its answer is lost."""
        self._counting.fail_next(self.launch, "drop-reply")

    def machine(self, node: str) -> str:
        """The machine's id in the local cloud behind."""
        raise NotImplementedError


class AwsControl(HandOnTestCloud):
    """EC2's test cloud."""

    name, launch = "aws", "RunInstances"
    slowness_s = 2.0  # the agent asks every 1.5 s

    def __init__(self, server: AwsServer, machines: RealMachines) -> None:
        super().__init__(server.cloud, machines)
        self._cloud = server.cloud
        self.introduction = _introduce("EC2", server.url, "boto3")

    def machine(self, node: str) -> str:
        """The same as EC2's id."""
        return self._record(node).id

    def kill(self, node: str) -> None:
        """Its host breaks."""
        self._cloud.lose(self._record(node).id)

    def left(self) -> list[str]:
        """Instances, and open spot requests."""
        instances = self._cloud.ec2.instances
        with instances.lock:
            waiting = [each.id for _, each in instances.requests.values() if each.state == "open"]
            return [record.id for record in self._alive()] + waiting

    def _alive(self) -> list[AwsRecord]:
        instances = self._cloud.ec2.instances
        with instances.lock:
            for record in instances.records.values():
                instances.sync(record)
            return [each for each in instances.records.values() if each.past[-1].state != "terminated"]

    def _record(self, node: str) -> AwsRecord:
        return _the_one(node, [each for each in self._alive() if each.tags.get("spotsup-node") == node])


class GcpControl(HandOnTestCloud):
    """Compute Engine's test cloud."""

    name, launch = "gcp", "instances.insert"
    slowness_s = 0.0  # its metadata service answers at the moment of the notice

    def __init__(self, server: GcpServer, machines: RealMachines) -> None:
        super().__init__(server.cloud, machines)
        self._cloud = server.cloud
        self.introduction = _introduce("Compute Engine", server.url, "google-cloud-compute")

    def machine(self, node: str) -> str:
        """Zone and name."""
        return self._record(node).key

    def kill(self, node: str) -> None:
        """Its host breaks: it is gone, and only an operation shows it."""
        self._cloud.lose(self._record(node).name)

    def left(self) -> list[str]:
        """Instances, running or stopped, and disks."""
        machines = [record.key for record in self._cloud.alive()]
        return machines + [f"disk {zone}.{name}" for zone, name in self._cloud.compute.instances.disks]

    def _record(self, node: str) -> GcpRecord:
        return _the_one(node, [each for each in self._cloud.alive() if each.items.get("spotsup-node") == node])


class AzureControl(HandOnTestCloud):
    """Azure's test cloud."""

    name, launch = "azure", "Microsoft.Compute/virtualMachines/write"
    slowness_s = 1.5  # the agent asks every second

    def __init__(self, server: AzureServer, machines: RealMachines) -> None:
        super().__init__(server.cloud, machines)
        self._cloud = server.cloud
        self.introduction = _introduce("Azure", server.url, "azure-mgmt-compute")

    def machine(self, node: str) -> str:
        """The VM's name."""
        return self._record(node).machine

    def kill(self, node: str) -> None:
        """The VM stops; Azure bills it until the daemon deletes it."""
        self._cloud.halt(self._record(node).name)

    def left(self) -> list[str]:
        """VMs, running or stopped, and what outlived one."""
        with self._cloud.arm.fleet.lock:
            return [record.name for record in self._alive()] + list(self._cloud.arm.fleet.loose)

    def _alive(self) -> list[AzureRecord]:
        fleet = self._cloud.arm.fleet
        with fleet.lock:
            for record in list(fleet.records.values()):
                fleet.sync(record)
            return list(fleet.records.values())

    def _record(self, node: str) -> AzureRecord:
        return _the_one(node, [each for each in self._alive() if each.body["tags"].get("spotsup-node") == node])


@contextmanager
def _local(stack: Stack) -> Iterator[CloudControl]:
    yield LocalControl(stack)


@contextmanager
def _aws(stack: Stack) -> Iterator[CloudControl]:
    # moto reads it in this process when it creates its first backend; it would load hundreds of unused images.
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
    from tests.clouds import aws

    with _machines(stack) as machines, aws.aws_cloud(machines) as server:
        known = _login(machines)
        _configure(stack, "aws", AwsSettings(regions=("us-east-1",), endpoint=server.url, **known), aws.ENVIRON)
        yield AwsControl(server, machines)


@contextmanager
def _gcp(stack: Stack) -> Iterator[CloudControl]:
    from tests.clouds import gcp

    with _machines(stack) as machines, gcp.gcp_cloud(machines) as server:
        settings = GcpSettings(project=gcp.PROJECT, regions=("us-central1",), endpoint=server.url, **_login(machines))
        _configure(stack, "gcp", settings, server.environ(stack.state / "key"))
        yield GcpControl(server, machines)


@contextmanager
def _azure(stack: Stack) -> Iterator[CloudControl]:
    from tests.clouds import azure

    with _machines(stack) as machines, azure.azure_cloud(machines) as server:
        _configure(stack, "azure", server.settings(**_login(machines)), server.environ)
        yield AzureControl(server, machines)


CLOUDS: Mapping[str, Callable[[Stack], AbstractContextManager[CloudControl]]] = {
    "local": _local,
    "aws": _aws,
    "gcp": _gcp,
    "azure": _azure,
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


def _introduce(cloud: str, url: str, sdk: str) -> str:
    return (
        f"{cloud}'s test cloud at {url}: {cloud}'s API and the real SDK ({sdk}), but [bold]not the real {cloud}[/bold]"
    )


def _machines(stack: Stack) -> AbstractContextManager[RealMachines]:
    from tests.clouds.machines import real_machines

    return real_machines(stack.cloud_dir)


def _login(machines: RealMachines) -> dict[str, Any]:
    return {"ssh_user": getpass.getuser(), "ssh_port": machines.ssh_port}


def _configure(stack: Stack, cloud: str, settings: CloudSettings, environ: Mapping[str, str]) -> None:
    """Configure this cloud and no other. The machines are on loopback addresses, so gloo uses that interface."""
    values = settings.model_dump(mode="json", exclude_defaults=True)
    lines = ["[local]", "enabled = false", "[node.env]", 'GLOO_SOCKET_IFNAME = "lo"', f"[{cloud}]"]
    lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
    stack.configure("\n".join(lines) + "\n", {**os.environ, **environ})


def _toml(value: Any) -> str:
    """A value in TOML; its strings, numbers and booleans are JSON's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _the_one(node: str, found: list[Record]) -> Record:
    if len(found) != 1:
        raise StackError(f"node {node} has {len(found)} machines that run, and not one")
    return found[0]
