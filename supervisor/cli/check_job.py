"""What `spotsupd check --job` finds out: whether the job's cloud has machines for it, which can mount its file systems,
and whether its object store takes checkpoints."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from spotsup_trainer.objects import check, store
from spotsup_trainer.objects import url as urls

from provisioners.base import Finding, ProvisionerError
from supervisor.api.place_order import prefers_the_cheapest
from supervisor.api.quote import Quotes
from supervisor.cli.submission import read_job_file
from supervisor.clouds import clouds_of, open_cloud
from supervisor.config import Config
from supervisor.errors import CommandRefusedError
from supervisor.spec import JobSpec, parse_spec

_RETRIES, _RETRY_FOR_S = 1, 20.0
_NODES_DECIDE = "only the nodes' role decides; each node tries it before it trains"


def read_job(path: Path) -> JobSpec:
    """Return a job file. Raises UsageError."""
    return parse_spec(read_job_file(path))


def check_offers(config: Config, spec: JobSpec, timeout_s: float) -> Finding:
    """Return what `spotsupctl submit` would say of the job's cloud. Nothing is launched."""
    rented = [name for name in clouds_of(config) if (found := config.cloud(name)) and not found.on_this_host]
    name = spec.placement.cloud or (rented[0] if len(rented) == 1 else "")
    if name not in rented:
        what = (
            "its machines are processes of this computer" if name else "`placement.cloud` names none of several clouds"
        )
        return Finding("machines", ok=True, message=f"no machines were looked for: {what}")
    here = spec.placement.model_copy(update={"cloud": name})
    spec = spec.model_copy(
        update={"placement": here, "places": tuple(each for each in spec.places if each.cloud in rented)}
    )
    clouds = spec.clouds if prefers_the_cheapest(spec) else (name,)
    try:
        opened = {each: open_cloud(config, each) for each in clouds}
        quote = Quotes(opened, timeout_s, timeout_s, config.prices).quote(spec)
    except (CommandRefusedError, ProvisionerError) as error:
        return Finding("machines", ok=False, message=str(error))
    if not quote.known:
        return Finding("machines", ok=True, message=f"machines were not looked for: {'; '.join(quote.warnings)}")
    first, count = quote.offers[0], len(quote.offers)
    message = f"{first.cloud} offers {first.instance_type} in {first.zone} first, of {count} offers that fit"
    return Finding("machines", ok=True, message=message)


def check_checkpoints(spec: JobSpec) -> Finding:
    """Try one write, read, listing and deletion, with the credentials that this computer has. Nodes have their own."""
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
