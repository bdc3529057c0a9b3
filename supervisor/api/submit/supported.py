"""Which jobs can run on a daemon's clouds. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from supervisor import checkpoints
from supervisor.errors import CommandRefusedError
from supervisor.spec import JobSpec


def check_supported(spec: JobSpec, clouds: Sequence[str], hosted: Collection[str]) -> None:
    """Raise CommandRefusedError for a job that cannot run on these clouds. `hosted`: those whose machines have a folder
    in common."""
    if spec.image is not None and not spec.image.digest:
        raise CommandRefusedError(
            f"{spec.image} has no digest, so two nodes could run different images: write docker://…@sha256:…, as "
            "`spotsupctl submit` does"
        )
    for place in spec.all_places:
        _check_place(spec.at(place), clouds, hosted)


def _check_place(spec: JobSpec, clouds: Sequence[str], hosted: Collection[str]) -> None:
    cloud = spec.placement.cloud
    if cloud not in clouds:
        have = ", ".join(clouds) or "none"
        raise CommandRefusedError(
            f"`placement.cloud` is {cloud}, which is not in the daemon's configuration: name "
            f"one that is ({have}), or "
            "ask an operator for it"
        )
    if cloud in hosted and spec.mounted:
        raise CommandRefusedError(
            f"`storage` is set, but machines of the cloud {cloud} have their folders in common: leave it out"
        )
    if cloud not in hosted and (why := checkpoints.lost_with_nodes(spec)):
        raise CommandRefusedError(f"job {spec.name} is refused: {why}")
