"""The body of the request that creates an instance. Pure."""

from __future__ import annotations

import shlex
from typing import Any, Literal

from provisioners.base import BY_THE_HOUR, LaunchRequest, Market, ProvisionerError
from provisioners.catalog import MachineType
from provisioners.gcp import disks, flex, interfaces, reservations
from provisioners.gcp.names import instance_name, labels
from provisioners.gcp.settings import GcpSettings
from provisioners.userdata import DeadMan, user_data

NOTICE_ITEM = "spotsup-notice-s"
"""The metadata item that tells the node's agent how many seconds of notice come before the shutdown."""

# Google's guest agent makes new SSH host keys at an instance's first boot (guest-agent, instance_setup.go:
# set_host_keys is true by default), and would replace the one that the daemon verifies. It runs beside cloud-init:
# where it was first, cloud-init installs ours again.
NO_HOST_KEYS = """mkdir -p /etc/default
grep -qs '^set_host_keys' /etc/default/instance_configs.cfg && exit 0
printf '[InstanceSetup]\\nset_host_keys = false\\n' >>/etc/default/instance_configs.cfg"""
_HOST_KEY_AGAIN = """grep -qsF {key} /etc/ssh/ssh_host_{kind}_key.pub && exit 0
cloud-init single --name ssh --frequency always
systemctl try-restart ssh sshd || true"""


def instance(
    request: LaunchRequest, settings: GcpSettings, machine: MachineType, driver: Literal["open", "proprietary"]
) -> dict[str, Any]:
    """Return the body, with the SDK's names. Raises ProvisionerError for what Google would refuse unhelpfully."""
    zone = request.offer.zone
    born_with = labels(request, settings.tags)
    kind = machine.machine_type or request.offer.instance_type
    body: dict[str, Any] = {
        "name": instance_name(request),
        "machine_type": f"zones/{zone}/machineTypes/{kind}",
        "scheduling": _scheduling(request, settings),
        "disks": [_boot_disk(request, settings, image_of(settings, machine, driver), kind, born_with)],
        "network_interfaces": interfaces.interfaces(request, settings, machine),
        **interfaces.policies(request, settings, machine),
        "metadata": {"items": [{"key": key, "value": value} for key, value in _metadata(request, settings).items()]},
        "labels": born_with,
        **_market(request),
    }
    if machine.machine_type and machine.accelerator:
        # GPUs are attached to N1 only; the other families include theirs.
        kind = f"zones/{zone}/acceleratorTypes/{machine.accelerator}"
        body["guest_accelerators"] = [{"accelerator_type": kind, "accelerator_count": machine.gpus}]
    if settings.network_tags:
        body["tags"] = {"items": list(settings.network_tags)}
    if settings.service_account:
        # "Best practices for using service accounts": a wide scope, limited by the account's roles.
        scopes = ["https://www.googleapis.com/auth/cloud-platform"]
        body["service_accounts"] = [{"email": settings.service_account, "scopes": scopes}]
    return body


def image_of(settings: GcpSettings, machine: MachineType, driver: Literal["open", "proprietary"]) -> str:
    """Return the image or image family; Google resolves a family itself, at each launch."""
    family = machine.gpu.split("-", 1)[0]
    image = settings.images.get(machine.gpu) or settings.images.get(family)
    if not image and machine.arch != "x86_64":
        raise ProvisionerError(
            f"{machine.name} has a CPU of kind {machine.arch}, and the default images are for x86_64: name an image "
            f"for it in gcp.images.{machine.gpu}"
        )
    image = image or (settings.image if driver == "open" else settings.image_proprietary)
    if not image:
        raise ProvisionerError(
            f"a {machine.gpu} needs NVIDIA's proprietary driver, and no image has it: set gcp.image_proprietary"
        )
    return image


def host_key_again(public: str) -> str:
    """Shell that installs the host key once more where it is not this one."""
    kind, key = public.split()[:2]
    return _HOST_KEY_AGAIN.format(key=shlex.quote(key), kind=kind.removeprefix("ssh-"))


def _scheduling(request: LaunchRequest, settings: GcpSettings) -> dict[str, Any]:
    """Return the scheduling. An instance with a GPU cannot be migrated; only the daemon restarts instances."""
    scheduling: dict[str, Any] = {"on_host_maintenance": "TERMINATE", "automatic_restart": False}
    if request.offer.market is Market.SPOT:
        scheduling |= {"provisioning_model": "SPOT", "instance_termination_action": "DELETE"}
        if settings.notice_s:
            scheduling["preemption_notice_duration"] = {"seconds": settings.notice_s}
    if request.offer.market is Market.FLEX:
        scheduling |= flex.scheduling(request.offer.lasts_s or settings.flex_days * flex.DAY_S)
    return scheduling


def _market(request: LaunchRequest) -> dict[str, Any]:
    """Return what the request's market wants beside its scheduling."""
    if request.offer.market is Market.FLEX:
        return flex.request()
    if request.offer.market is Market.RESERVED:
        return {"reservation_affinity": reservations.affinity(request.offer.reservation)}
    return {}


def _boot_disk(
    request: LaunchRequest, settings: GcpSettings, image: str, machine_type: str, born_with: dict[str, str]
) -> dict[str, Any]:
    kind = disks.of_type(machine_type, settings.disk_type)
    return {
        "boot": True,
        "auto_delete": True,
        "initialize_params": {
            "source_image": image,
            "disk_size_gb": request.disk_gb or settings.disk_gb,
            "disk_type": f"zones/{request.offer.zone}/diskTypes/{kind}",
            "labels": born_with,
        },
    }


def _metadata(request: LaunchRequest, settings: GcpSettings) -> dict[str, str]:
    """Return the plain text of what labels, which allow few characters, may have as a digest."""
    # Nodes have no right to delete instances: all programs on them would have it (docs/decisions). A machine that is
    # switched off costs its disk only, which the daemon deletes.
    dead_man = DeadMan(request.dead_man_s) if request.dead_man_s else None
    data = user_data(
        request.node,
        settings.ssh_user,
        request.authorized_keys,
        request.host_key,
        dead_man,
        before=NO_HOST_KEYS,
        after=host_key_again(request.host_key.public),
    )
    return {
        **request.own_tags,
        NOTICE_ITEM: str(settings.notice_s if request.offer.market in BY_THE_HOUR else 0),
        "user-data": data,
        "block-project-ssh-keys": "TRUE",
        # OS Login would silently ignore our key.
        "enable-oslogin": "FALSE",
    }
