"""How one node of a job is taken on a real account: by the cloud's own simulated preemption where it has one."""

from __future__ import annotations

from dataclasses import dataclass

from provisioners.base import NODE_TAG, Instance, Provisioner, ProvisionerError
from provisioners.calls import Deadline
from provisioners.codes import ApiError
from provisioners.settings import CloudSettings


@dataclass(frozen=True, slots=True)
class Forced:
    """What was asked for. `preempts`: the cloud's own preemption, with its notice."""

    answer: str
    preempts: bool


def force_end(
    provisioner: Provisioner, settings: CloudSettings, machine: Instance, fis_role: str, timeout_s: float
) -> Forced:
    """Have the cloud take a machine. Raises ProvisionerError where it does not even terminate it.

    "simulate-maintenance-event" of a spot machine is a preemption (Compute Engine, "Test preemption settings");
    "Simulate Eviction" evicts within 30 minutes (Azure, virtual machines). EC2 has its Fault Injection Service, which
    takes a role of the account (`fis_role`, an ARN); without one the machine is terminated.
    """
    why = ""
    try:
        if provisioner.name == "gcp":
            return Forced(_maintenance(settings, machine.id, timeout_s), preempts=True)
        if provisioner.name == "azure":
            return Forced(_eviction(settings, machine.id, timeout_s), preempts=True)
        if fis_role:
            return Forced(_interruption(settings, machine, fis_role), preempts=True)
    except (ApiError, ProvisionerError) as error:
        why = f" (its simulated preemption was refused: {error})"
    provisioner.terminate(machine.id, timeout_s)
    return Forced(f"a termination{why}", preempts=False)


def _interruption(settings: CloudSettings, machine: Instance, role: str) -> str:
    """By an experiment on the one machine with these tags. Its template is deleted at once: an experiment goes on
    without it. Source: "AWS FIS actions reference", aws:ec2:send-spot-instance-interruptions."""
    from boto3.session import Session
    from botocore.exceptions import BotoCoreError, ClientError

    from provisioners.aws.settings import AwsSettings

    assert isinstance(settings, AwsSettings)
    tags = {**machine.owner.tags, NODE_TAG: machine.node}
    target = {"resourceType": "aws:ec2:spot-instance", "resourceTags": tags, "selectionMode": "ALL"}
    action = {
        "actionId": "aws:ec2:send-spot-instance-interruptions",
        "parameters": {"durationBeforeInterruption": "PT2M"},
        "targets": {"SpotInstances": "node"},
    }
    try:
        client = Session(profile_name=settings.profile or None).client(
            "fis", region_name=machine.region, endpoint_url=settings.endpoint or None
        )
        made = client.create_experiment_template(
            description=f"spotsup contract-real: interrupts {machine.node}",
            targets={"node": target},
            actions={"interrupt": action},
            stopConditions=[{"source": "none"}],
            roleArn=role,
            tags=machine.owner.tags,
        )["experimentTemplate"]["id"]
        try:
            client.start_experiment(experimentTemplateId=made)
        finally:
            client.delete_experiment_template(id=made)
    except (BotoCoreError, ClientError) as error:
        raise ProvisionerError(f"the Fault Injection Service: {error}") from error
    return "send-spot-instance-interruptions"


def _maintenance(settings: CloudSettings, machine: str, timeout_s: float) -> str:
    from provisioners.gcp.client import Gcp
    from provisioners.gcp.names import split_id
    from provisioners.gcp.settings import GcpSettings

    assert isinstance(settings, GcpSettings)
    zone, name = split_id(machine)
    Gcp(settings).ask(
        "instances", "simulate_maintenance_event_unary", Deadline(timeout_s), zone, zone=zone, instance=name
    )
    return "instances.simulateMaintenanceEvent"


def _eviction(settings: CloudSettings, machine: str, timeout_s: float) -> str:
    from provisioners.azure.client import Azure
    from provisioners.azure.settings import AzureSettings

    assert isinstance(settings, AzureSettings)
    Azure(settings).ask(
        f"an eviction of {machine}",
        lambda clients, more: clients.compute.virtual_machines.simulate_eviction(clients.group, machine, **more),
        Deadline(timeout_s),
    )
    return "virtualMachines/simulateEviction"
