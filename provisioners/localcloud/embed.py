"""The local cloud as a daemon's default: its server starts when needed, and ends when it has no machines."""

from __future__ import annotations

import contextlib
from pathlib import Path

from provisioners.base import Finding, ProvisionerError
from provisioners.calls import NoAnswerError, NotSentError
from provisioners.localcloud.client import call
from provisioners.localcloud.control import ServerError, start_server, take_over
from provisioners.localcloud.models import SettingsPatch
from provisioners.localcloud.programs import ProgramMissingError, find_ssh_programs, tools_root
from provisioners.localcloud.store import Store, StoreError

PING_TIMEOUT_S = 5.0


def start(directory: Path, image: str, stack: contextlib.ExitStack) -> None:
    """`ensure_server`; where the cloud is empty when `stack` ends, its server ends too. Raises ProvisionerError."""
    try:
        ensure_server(directory, image)
    except (ServerError, StoreError) as error:
        raise ProvisionerError(f"the local cloud did not start: {error}") from error
    stack.callback(stop_if_empty, directory)


def startable(directory: Path, timeout_s: float) -> Finding | None:
    """Check whether a server could be started; None where one answers. Nothing is started."""
    try:
        call(directory, "GET", "/v1/ping", timeout_s=timeout_s)
    except NoAnswerError as error:
        return Finding("answer", ok=False, message=f"{error}: stop its process, and a new one is started")
    except NotSentError:
        pass
    except OSError as error:
        return Finding(
            "answer", ok=False, message=f"{directory} cannot be used ({error.strerror}): set local.dir or state_dir"
        )
    else:
        return None
    try:
        sshd = find_ssh_programs(tools_root()).sshd
    except ProgramMissingError as error:
        fix = "`apt-get install openssh-server`, or add the table of a rented cloud, with which the local one is off"
        return Finding("sshd", ok=False, message=f"{error}: {fix}")
    message = f"its server would be started for {directory}, and machines would be {sshd} on this computer"
    return Finding("programs", ok=True, message=message)


def ensure_server(directory: Path, image: str = "") -> None:
    """Serve `directory`, unless a server runs already; new machines are of `image`. Raises ServerError, StoreError."""
    try:
        call(directory, "GET", "/v1/ping", timeout_s=PING_TIMEOUT_S)
    except NotSentError:
        start_server(directory)
    if not image:
        return
    change = SettingsPatch(image=image).model_dump_json(exclude_unset=True)
    try:
        answer = call(directory, "PATCH", "/v1/admin/settings", timeout_s=PING_TIMEOUT_S, body=change)
    except (NotSentError, NoAnswerError) as error:
        raise ServerError(f"it did not accept its machine image: {error}") from error
    if answer.status != 200:
        raise ServerError(f"it does not take {image} as its machine image: {answer.text[:200]}")


def stop_if_empty(directory: Path) -> None:
    """Stop the server of a cloud without machines. With machines it runs on: they outlive a daemon."""
    store = Store(directory)
    if any(machine.ended_at is None for machine in store.machines().values()):
        return
    take_over(store)
    try:
        store.forget_endpoint()
    finally:
        store.unlock()


__all__ = ["ServerError", "StoreError", "ensure_server", "stop_if_empty"]
