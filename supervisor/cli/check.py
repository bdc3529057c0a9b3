"""`spotsupd check`: tests the configuration and says how to fix what fails. Starts nothing and costs nothing."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from provisioners.base import Finding, InstanceState, Owner, Provisioner, ProvisionerError
from provisioners.calls import Deadline
from provisioners.registry import CLOUDS
from supervisor.api.security.unix_socket import closed_folder
from supervisor.channels import open_senders
from supervisor.cli.check_etcd import check_etcd
from supervisor.cli.check_job import check_checkpoints, check_offers
from supervisor.clouds import NO_CLOUD, clouds_of, open_cloud
from supervisor.config import Config
from supervisor.errors import SpotsupError, StartError
from supervisor.identity import load_identity
from supervisor.runtime.background import in_background
from supervisor.spec import JobSpec

TIMEOUT_S = 60.0
_PROBE_BYTES = 64 * 1024
GRACE_S = 5.0  # each check keeps its own time limit; this is for one that does not


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One result."""

    subject: str  # a cloud's name, etcd, state, api, ssh, secrets, slack, alerts or job
    finding: Finding


def check_installation(
    config: Config,
    *,
    embedded_etcd: bool,
    timeout_s: float = TIMEOUT_S,
    files: Sequence[Path] = (),
    job: JobSpec | None = None,
) -> list[CheckResult]:
    """Run all checks at the same time, each within `timeout_s`. A failed check is a result, never an exception.

    `files`: others that may hold secrets, such as the units' environment. `job`: whose checkpoints to try.
    """
    checks: dict[str, Callable[[], Sequence[Finding]]] = {
        "etcd": lambda: check_etcd(config, embedded=embedded_etcd),
        "state": lambda: [_state(config.state)],
        "ssh": lambda: [_key(config.state)],
        "secrets": lambda: _secrets(config, files),
        "slack": lambda: [_slack(config)],
    }
    if config.alerts.all:
        checks["alerts"] = lambda: _channels(config)
    if config.api.group:
        checks["api"] = lambda: [_socket(config)]
    for name in clouds_of(config):
        checks[name] = partial(_cloud, config, name, timeout_s)
    if not clouds_of(config):
        checks["clouds"] = lambda: [Finding("set up", ok=False, message=NO_CLOUD)]
    if job is not None:
        checks["job"] = lambda: [check_checkpoints(job), check_offers(config, job, timeout_s)]
    return _gather({name: in_background(check, f"check-{name}") for name, check in checks.items()}, timeout_s)


def _gather(running: Mapping[str, Future[Sequence[Finding]]], timeout_s: float) -> list[CheckResult]:
    deadline = time.monotonic() + timeout_s + GRACE_S
    found = []
    for subject, future in running.items():
        findings = _result(subject, future, deadline - time.monotonic(), timeout_s)
        found += [CheckResult(subject, each) for each in findings]
    return found


def _result(subject: str, future: Future[Sequence[Finding]], left_s: float, timeout_s: float) -> Sequence[Finding]:
    try:
        return future.result(max(0.0, left_s))
    except TimeoutError:
        message = f"{subject} did not answer within {timeout_s:g} s: can this computer reach it?"
        return [Finding("answer", ok=False, message=message)]
    except (ProvisionerError, SpotsupError) as error:
        return [Finding("set up", ok=False, message=str(error))]
    except Exception as error:  # noqa: BLE001 - a bug in one check must not hide the results of the others
        return [Finding("check", ok=False, message=f"the check itself failed, which is a bug in spotsup: {error!r}")]


def _state(state: Path) -> Finding:
    """Check whether the state folder takes a file: permissions do not show a full disk, or one that became
    read-only."""
    if not state.is_dir():
        return Finding("folder", ok=True, message=f"the daemon will create {state}")
    try:
        with tempfile.TemporaryFile(dir=state) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        why = f"{state} cannot be written ({error.strerror})"
        message = f"{why}: make room there, run this as the daemon's user, or set state_dir"
        return Finding("folder", ok=False, message=message)
    return Finding("folder", ok=True, message=f"{state} can be written")


def _key(state: Path) -> Finding:
    """Check the cluster's secret, from which all SSH keys are derived. The check does not create it."""
    path = state / "cluster.key"
    try:
        if path.exists():
            load_identity(path)
            return Finding("key", ok=True, message=f"SSH keys are derived from {path}")
    except StartError as error:
        return Finding("key", ok=False, message=str(error))
    except OSError as error:
        message = f"{path} cannot be read ({error.strerror}): run the check as the daemon's user"
        return Finding("key", ok=False, message=message)
    folder = next(each for each in (state.absolute(), *state.absolute().parents) if each.exists())
    if not folder.is_dir():
        message = f"{path} cannot be created, {folder} is not a folder: set state_dir"
        return Finding("key", ok=False, message=message)
    if not os.access(folder, os.W_OK | os.X_OK):
        message = f"{path} cannot be created, {folder} is not writable: run as the daemon's user, or set state_dir"
        return Finding("key", ok=False, message=message)
    return Finding("key", ok=True, message=f"the daemon will create {path} and derive SSH keys from it")


def _socket(config: Config) -> Finding:
    """Check whether the members of `api.group` reach the socket."""
    group, path = config.api.group, config.socket
    try:
        closed = closed_folder(path, group)
    except StartError as error:
        return Finding("socket", ok=False, message=str(error))
    if closed is not None:
        fix = f"`chgrp {group} {closed}`, `chmod g+x {closed}`"
        message = f"members of {group} cannot reach {path}, {closed} is closed to them: {fix}"
        return Finding("socket", ok=False, message=message)
    return Finding("socket", ok=True, message=f"members of {group} may use {path}: all of spotsupctl but `ssh`")


def _secrets(config: Config, files: Sequence[Path]) -> list[Finding]:
    """Check that only the daemon's user, or its group, may read them."""
    named = [Path(each) for each in (config.etcd.password_file, config.etcd.key, config.slack.webhook_file) if each]
    named += [Path(each) for each in config.alerts.files().values()]
    found = []
    for path in dict.fromkeys([*named, *files]):
        with contextlib.suppress(OSError):  # who needs it reports that
            if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o007:
                message = f"{path} holds secrets, and every user may use it (mode {mode:o}): `chmod o= {path}`"
                found.append(Finding("files", ok=False, message=message))
    return found or [Finding("files", ok=True, message="files with secrets are for their owner and group only")]


def _slack(config: Config) -> Finding:
    """Check the webhook. Nothing is posted, because people would read it."""
    try:
        webhook = config.slack_webhook()
    except SpotsupError as error:
        return Finding("webhook", ok=False, message=str(error))
    if not webhook:
        return Finding("webhook", ok=True, message="no webhook is set: alerts go to the log only")
    parts = urlsplit(webhook)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        message = "the webhook is not a URL: copy it from Slack, as https://hooks.slack.com/services/…"
        return Finding("webhook", ok=False, message=message)
    from supervisor.alerts.slack import SlackWebhook

    if problem := SlackWebhook(webhook).try_without_sending():
        return Finding("webhook", ok=False, message=f"alerts to {parts.hostname} would be lost: {problem}")
    return Finding("webhook", ok=True, message=f"alerts go to {parts.hostname}; this check posted nothing")


def _channels(config: Config) -> list[Finding]:
    """Check the channels of [alerts]. Nothing is sent to people."""
    try:
        names = {each.name for each in config.alerts.all}
        senders = {name: sender for name, sender in open_senders(config, time.time).items() if name in names}
    except SpotsupError as error:
        return [Finding("channels", ok=False, message=str(error))]
    found = []
    for name, sender in senders.items():
        problem = sender.try_without_sending()
        message = f"alerts to it would wait: {problem}" if problem else "answers; `spotsupd alert test` sends a message"
        found.append(Finding(name, ok=not problem, message=message))
    return found


def _node_role(config: Config, name: str) -> list[Finding]:
    """Check what nodes would write checkpoints to an object store with. Each node tries it before it trains; the
    daemon's own credentials say nothing about it."""
    settings = config.cloud(name)
    if settings is None or settings.node_role is None:
        return []
    key, role, file = settings.node_role
    needs = f"what docs/permissions/{file} lists"
    if role:
        message = f"nodes have {key} {role}; for `checkpoints` in an object store it needs {needs}"
    else:
        message = f"nodes have no role; for `checkpoints` in an object store set {name}.{key} to one with {needs}"
    return [Finding("checkpoints", ok=True, message=message)]


def _cloud(config: Config, name: str, timeout_s: float) -> Sequence[Finding]:
    if (startable := CLOUDS[name].startable) is not None:
        found = startable(config.cloud(name), config.state, timeout_s)
        if found is not None:
            return [found]
    provisioner, deadline = open_cloud(config, name), Deadline(timeout_s)
    findings = [*provisioner.check(timeout_s), *_node_role(config, name)]
    if not findings or not findings[0].ok:
        return findings
    return [*findings, _others(config, provisioner, deadline.left_s())]


def _others(config: Config, provisioner: Provisioner, timeout_s: float) -> Finding:
    """Find which other installations have machines in the account. They are left alone."""
    mark = ""
    with contextlib.suppress(StartError, OSError):  # `_key` reports it
        path = config.state / "cluster.key"
        mark = load_identity(path).mark if path.exists() else ""
    try:
        over = {InstanceState.TERMINATED, InstanceState.UNREADABLE}
        alive = [each for each in provisioner.instances(None, timeout_s) if each.state not in over]
    except ProvisionerError as error:
        return Finding("other installations", ok=False, message=str(error))
    counts = Counter(each.owner for each in alive if each.owner != Owner(config.cluster, mark))
    if not counts:
        return Finding("other installations", ok=True, message="no other installation of spotsup has machines here")
    named = ", ".join(
        f"cluster {owner.cluster} with key mark {owner.key_mark or '(none)'} has {count}"
        for owner, count in sorted(counts.items(), key=str)
    )
    message = f"machines of other installations are left alone: {named}; our key mark is {mark or '(none yet)'}"
    return Finding("other installations", ok=True, message=message)
