"""A scheduler for TorchX: `torchx run -s spotsup dist.ddp -j 1:4x8 --script train.py`. Needs torchx, 0.7 or newer.

Each app is one job. TorchX finds it by the entry points of this distribution.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, split_lines_iterator
from torchx.specs import AppDef, AppDryRunInfo, AppState, Role, macros, runopts

from spotsup.client import Client
from spotsup.errors import NotFoundError
from spotsup.launched import name_of, nested, run_of

_STATES = {
    "queued": AppState.PENDING,
    "starting": AppState.PENDING,
    "waiting": AppState.PENDING,
    "paused": AppState.PENDING,
    "running": AppState.RUNNING,
    "degraded": AppState.RUNNING,
    "succeeded": AppState.SUCCEEDED,
    "failed": AppState.FAILED,
    "cancelled": AppState.CANCELLED,
}
# Options (`-cfg hours=2`): the key of a job file that each sets.
_KEYS: Mapping[str, tuple[str, type, str]] = {
    "environment": ("environment", str, "image, uv, a requirements file of the code, or docker://IMAGE"),
    "checkpoints": ("checkpoints", str, "where checkpoints go, or none"),
    "cloud": ("placement.cloud", str, "the cloud to rent from"),
    "gpu": ("resources.gpu", str, "GPU type, such as V100"),
    "hours": ("limits.hours", float, "the job pauses after training for so many hours"),
    "usd": ("limits.usd", float, "the job pauses once its nodes have cost so many US dollars"),
}


class SpotsupScheduler(Scheduler[Mapping[str, Any]]):
    """Jobs of one daemon: the one that `spotsupctl` uses, or the one of a context."""

    def __init__(self, session_name: str, client: Client | None = None) -> None:
        super().__init__("spotsup", session_name)
        self._client = client

    def _daemon(self, context: str = "") -> Client:
        if self._client is None or context:
            self._client = Client(context=context)
        return self._client

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add("code", str, help="the folder that is copied to every node", default=".")
        options.add("context", str, help="a daemon that `spotsupctl login` has made known", default="")
        for name, (_, kind, meaning) in _KEYS.items():
            options.add(name, kind, help=meaning, default=None)
        return options

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[dict[str, Any]]:
        if len(app.roles) != 1:
            raise ValueError(f"a job of spotsup has one role; {app.name} has {len(app.roles)}")
        name = name_of(app.name, uuid.uuid4().hex[:6])
        role = macros.Values(img_root=".", app_id=name, replica_id="0", rank0_env="MASTER_ADDR").apply(app.roles[0])
        run, processes = run_of(role.entrypoint, role.args)
        keys: dict[str, Any] = {"name": name, "run": run, "nodes.desired": role.num_replicas}
        keys["nodes.min"] = role.min_replicas if role.min_replicas is not None else role.num_replicas
        keys["nodes.max"] = role.num_replicas
        has_gpus = role.resource.gpu > 0 or bool(cfg.get("gpu"))
        if processes > 1 and not has_gpus:
            raise ValueError(
                f"one worker runs on each node without GPUs, and {app.name} asks for {processes}: write "
                f"-j {role.num_replicas}x1, or name GPUs (--gpu {processes}, or -cfg gpu=V100)"
            )
        keys["resources.gpus_per_node"] = (processes or role.resource.gpu) if has_gpus else None
        keys["env"] = role.env or None
        keys.update({key: cfg.get(option) for option, (key, _, _) in _KEYS.items()})
        request = {"spec": nested(keys), "code": cfg.get("code") or ".", "context": cfg.get("context") or ""}
        return AppDryRunInfo(request, lambda made: json.dumps(made, indent=2))

    def schedule(self, dryrun_info: AppDryRunInfo[dict[str, Any]]) -> str:
        """Submit it; returns the job's name."""
        asked = dryrun_info.request
        return self._daemon(asked["context"]).submit(spec=asked["spec"], code=asked["code"]).name

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """How a job is; None where there is none of that name."""
        try:
            status = self._daemon().job(app_id).status()
        except NotFoundError:
            return None
        first, *rest = status.raw.get("command") or [""]
        role = Role(name=first or app_id, image="", entrypoint=first, args=list(rest), num_replicas=status.desired)
        state = _STATES.get(status.state, AppState.UNKNOWN)
        return DescribeAppResponse(app_id=app_id, state=state, msg=status.sentence, roles=[role])

    def list(self) -> list[ListAppResponse]:
        """All jobs."""
        return [ListAppResponse(each.name, _STATES.get(each.state, AppState.UNKNOWN)) for each in self._daemon().jobs()]

    def _cancel_existing(self, app_id: str) -> None:
        if not self._daemon().job(app_id).status().ended:
            self._daemon().job(app_id).cancel()

    def log_iter(
        self,
        app_id: str,
        role_name: str,  # noqa: ARG002
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,  # noqa: ARG002 - output has no times
        until: datetime | None = None,  # noqa: ARG002
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """The lines of the `k`th node. Both streams are one."""
        if streams not in (None, Stream.COMBINED):
            raise ValueError("spotsup keeps stdout and stderr as one: leave the stream out")
        job = self._daemon().job(app_id)
        nodes = [row["id"] for row in job.status().raw["node_list"]]
        if not 0 <= k < len(nodes):
            return []
        wanted = re.compile(regex or "")
        lines = split_lines_iterator(job.logs(nodes[k], follow=should_tail))
        return (line for line in lines if wanted.search(line))


def create_scheduler(session_name: str, **_: object) -> SpotsupScheduler:
    """For TorchX."""
    return SpotsupScheduler(session_name)


__all__ = ["SpotsupScheduler", "create_scheduler"]
