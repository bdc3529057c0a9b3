"""`submit --explain`: what bootstrap would do on a job's nodes, step by step, before anything is submitted.

No machine exists yet whose facts could be read, so they are assumed (bootstrap/assumed.py) and the assumptions shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from fastapi import FastAPI
from pydantic import Field

from provisioners.base import Market, Offer
from supervisor.access import Action
from supervisor.api.body import RequestBody
from supervisor.api.quote import Quote, quote_row
from supervisor.api.security.gate import MAX_BLOB_BYTES
from supervisor.api.security.rules import may
from supervisor.api.submit.job_files import JobFiles
from supervisor.config import Config
from supervisor.errors import UsageError
from supervisor.model import NodeRecord
from supervisor.new_job import new_job
from supervisor.nodes.prepare import pack_trainer, setup_of, user_of
from supervisor.nodes.uv import pack_uv
from supervisor.spec import JobSpec

if TYPE_CHECKING:
    from bootstrap import Archive, Setup
    from bootstrap.environment.lock import Lock
    from bootstrap.model import Command
    from bootstrap.steps import PlannedStep

MAX_NODE_PLANS = 3


class LockBody(RequestBody):
    """What the environment is built from: `bootstrap.model.Lock`."""

    kind: Literal["requirements", "uv"]
    file: str = Field(min_length=1, max_length=1024)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    requires_python: str = Field(default="", max_length=200)


class ExplainBody(RequestBody):
    """A job file's content, and the hash and size of its code, which itself is not sent."""

    spec: dict[str, Any] = Field(repr=False)
    code_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    code_bytes: int = Field(ge=0, le=MAX_BLOB_BYTES)
    lock: LockBody | None = None


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What bootstrap would do on nodes of some instance types."""

    instance_types: tuple[str, ...]
    gpu: str
    gpus: int
    assumptions: tuple[str, ...]
    steps: tuple[dict[str, Any], ...]  # as JSON


class Explainer:
    """Plans nodes by the daemon's configuration."""

    def __init__(self, config: Config, home: str) -> None:
        """`home`: the daemon user's home folder, which machines of the local cloud share."""
        self._config = config
        self._home = home

    def explain(self, spec: JobSpec, quote: Quote, body: ExplainBody) -> list[NodePlan]:
        """Return a plan for each instance type among the first offers; types with the same plan share one.

        Raises UsageError.
        """
        from spotsup.archive import Archive

        from bootstrap.environment.lock import Lock

        # Only the hash and the size are known here, and only they matter.
        code = Archive(body.code_sha256, bytes(body.code_bytes))
        lock = Lock(**body.lock.model_dump()) if body.lock else None
        try:
            plans = [self._plan(offer, spec, code, lock) for offer in sample_offers(quote, spec)]
        except ValueError as error:
            raise UsageError(f"nodes of {spec.name} cannot be prepared: {error}") from error
        merged: dict[str, NodePlan] = {}
        for each in plans:
            key = repr((each.steps, each.assumptions))
            types = (*(merged[key].instance_types if key in merged else ()), *each.instance_types)
            merged[key] = replace(each, instance_types=types)
        return list(merged.values())

    def _plan(self, offer: Offer, spec: JobSpec, code: Archive, lock: Lock | None) -> NodePlan:
        from bootstrap import plan
        from bootstrap.assumed import assumed

        job = new_job(spec, code.sha256, "explained", 0.0)
        node = NodeRecord(f"{job.task_id}-1", job.name, "", offer, 0.0)
        setup: Setup = setup_of(self._config, node, job, (), code, pack_trainer(), lock, pack_uv() if lock else None)
        user = user_of(self._config, node)
        settings = self._config.cloud(offer.cloud)
        on_host = settings is not None and settings.on_this_host
        home = self._home if on_host else "/root" if user == "root" else f"/home/{user}"
        guess = assumed(setup, user, home)
        steps = tuple(step_row(step) for step in plan(guess.facts, setup))
        return NodePlan((offer.instance_type,), setup.host.gpu, setup.host.gpus, guess.assumptions, steps)


def sample_offers(quote: Quote, spec: JobSpec) -> list[Offer]:
    """Return the first offer of each instance type, at most three; without offers, one made from the job's own
    wishes."""
    found: dict[str, Offer] = {}
    for offer in quote.offers:
        found.setdefault(offer.instance_type, offer)
    if found:
        return list(found.values())[:MAX_NODE_PLANS]
    resources, cloud = spec.resources_of(None), spec.placement.cloud
    named = next(iter(resources.instance_types), "unknown")
    return [Offer(cloud, "", "", named, Market.SPOT, None, gpu=resources.gpu, gpus=resources.gpus_per_node)]


def step_row(step: PlannedStep) -> dict[str, Any]:
    """Return a step as JSON. The content of uploads is never shown: it may hold secrets."""
    from bootstrap.model import Skip, Unfit

    match step.decision:
        case Skip(reason):
            return {"step": step.name, "skip": reason}
        case Unfit(reason):
            return {"step": step.name, "unfit": reason}
        case commands:
            return {"step": step.name, "commands": [_command_row(command) for command in commands]}


def _command_row(command: Command) -> dict[str, Any]:
    from bootstrap.model import Reboot, Run, Upload

    row: dict[str, Any] = {"kind": type(command).__name__.lower(), "what": str(command)}
    match command:
        case Run():
            row |= {"as_root": command.as_root, "timeout_s": command.timeout_s, "script": command.script.strip()}
        case Reboot():
            row |= {"as_root": True, "timeout_s": command.timeout_s}
        case Upload():
            row |= {"path": command.path, "bytes": len(command.data)}
        case _:
            pass
    return row


def add_explain(app: FastAPI, job_files: JobFiles, explainer: Explainer) -> None:
    """`/v1/explain`: what `/v1/plan` returns, and the steps on nodes."""

    @app.post("/v1/explain", openapi_extra=may(Action.PLAN))
    def explain(body: ExplainBody) -> dict[str, Any]:
        spec, quote = job_files.plan(body.spec)
        plans = explainer.explain(spec, quote, body)
        rows = [
            {
                "instance_types": list(each.instance_types),
                "gpu": each.gpu or None,
                "gpus": each.gpus,
                "assumptions": list(each.assumptions),
                "steps": list(each.steps),
            }
            for each in plans
        ]
        return {**quote_row(quote), "node_plans": rows}
