"""What `spotsupd check --job` finds out about the object store that a job's checkpoints go to."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import yaml
from spotsup_trainer.objects import check, store
from spotsup_trainer.objects import url as urls

from provisioners.base import Finding
from supervisor.errors import UsageError
from supervisor.spec import JobSpec, parse_spec

_RETRIES, _RETRY_FOR_S = 1, 20.0
_NODES_DECIDE = "only the nodes' role decides; each node tries it before it trains"


def read_job(path: Path) -> JobSpec:
    """A job file. Raises UsageError."""
    try:
        return parse_spec(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise UsageError(f"cannot read the job file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from error


def check_checkpoints(spec: JobSpec) -> Finding:
    """One write, read, listing and deletion, with the credentials that this computer has. Nodes have their own."""
    url = spec.checkpoints
    if not urls.is_url(url):
        message = f"job {spec.name} keeps its checkpoints in no object store: there is nothing to try from here"
        return Finding("checkpoints", ok=True, message=message)
    if find_spec("obstore") is None:
        message = f"{url} was not tried (obstore is not installed here: pip install obstore): {_NODES_DECIDE}"
        return Finding("checkpoints", ok=True, message=message)
    try:
        opened = store.ObstoreStore(url, os.environ, retries=_RETRIES, retry_for_s=_RETRY_FOR_S)
        problem = check.check(opened, "spotsupd")
    except (OSError, ValueError) as error:
        problem = str(error)
    if store.NO_CREDENTIALS in problem:
        message = f"{url} was not tried, for this computer has no credentials for it: {_NODES_DECIDE}"
        return Finding("checkpoints", ok=True, message=message)
    if problem:
        return Finding("checkpoints", ok=False, message=f"checkpoints cannot be written from here: {problem}")
    message = f"{url} can be written, read and deleted from here; nodes do so by their own role, and try it first"
    return Finding("checkpoints", ok=True, message=message)
