"""The nodes that Prometheus scrapes, in the form of its HTTP service discovery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

from fastapi import FastAPI, Query

from supervisor.access import Action
from supervisor.api.jobs.views import in_order
from supervisor.api.rows import TargetRow
from supervisor.api.security.rules import may
from supervisor.model import NodeState
from supervisor.planner.world import JobView

LIVING = frozenset({NodeState.READY, NodeState.MEMBER, NodeState.DRAINING, NodeState.SUSPECT})

NODE_EXPORTER_PORT = 9100
"""node_exporter's own default; dcgm-exporter's is 9400."""


def targets_app(jobs: Callable[[], Sequence[JobView]]) -> FastAPI:
    """Only the targets: for a port that users other than the daemon's can reach."""
    app = FastAPI(title="spotsupd", docs_url=None, redoc_url=None, openapi_url=None)
    add_targets(app, jobs)
    return app


def add_targets(app: FastAPI, jobs: Callable[[], Sequence[JobView]]) -> None:
    """Add the route."""

    @app.get("/v1/targets", openapi_extra=may(Action.READ))
    def _targets(
        port: Annotated[int, Query(ge=1, le=65535)] = NODE_EXPORTER_PORT, *, gpus: bool = False
    ) -> list[TargetRow]:
        return targets(jobs(), port, gpus=gpus)


def targets(jobs: Iterable[JobView], port: int, *, gpus: bool) -> list[TargetRow]:
    """Return one entry per living node, at its private address and `port`. `gpus`: only nodes with a GPU.

    Labels carry our prefix, because `job` and `instance` are Prometheus' own.
    """
    nodes = [node for view in jobs for node in view.nodes.values()]
    return [
        {
            "targets": [_at(node.private_address or node.ssh_host, port)],
            "labels": {
                "spotsup_job": node.job,
                "spotsup_node": node.id,
                "spotsup_cloud": node.offer.cloud,
                "spotsup_zone": node.offer.zone,
                "spotsup_instance_type": node.offer.instance_type,
                "spotsup_market": str(node.offer.market),
            },
        }
        for node in in_order(nodes)
        if node.state in LIVING and (node.private_address or node.ssh_host) and (node.offer.gpus or not gpus)
    ]


def _at(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
