"""The serial console of a machine, by its boot diagnostics."""

from __future__ import annotations

from provisioners.azure.client import Azure, download
from provisioners.azure.settings import AzureSettings
from provisioners.calls import Deadline
from provisioners.codes import ApiError

_MAX_CHARACTERS = 65536
# Conflict: the machine is not allocated, or has no boot diagnostics (yet).
_NONE = ("ResourceNotFound", "NotFound", "HTTP 404", "Conflict", "OperationNotAllowed", "HTTP 409")


def tail(azure: Azure, settings: AzureSettings, machine: str, deadline: Deadline) -> str:
    """Return its last characters; "" where there are none. Azure's address for it is valid, and secret, for five
    minutes."""
    try:
        reply = azure.ask(
            f"the console of {machine}",
            lambda clients, more: clients.compute.virtual_machines.retrieve_boot_diagnostics_data(
                clients.group, machine, sas_uri_expiration_time_in_minutes=5, **more
            ),
            deadline,
        )
    except ApiError as error:
        if error.reply.code in _NONE:
            return ""
        raise
    url = reply.get("serialConsoleLogBlobUri") or ""
    text = download(settings, url, max(deadline.left_s(), 0.1)) if url else ""
    return text[-_MAX_CHARACTERS:]
