"""Opens the place for a Session's checkpoints."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotsup_trainer.session.peers import Peers
from spotsup_trainer.worker_files import earlier_places

if TYPE_CHECKING:
    from spotsup_trainer.session.checkpoint import Checkpointer


def opened(
    state: Mapping[str, Any],
    place: str | os.PathLike[str] | None,
    keep: tuple[int, int | None],
    warn_after_s: float,
    of: tuple[Peers, int],
    environ: Mapping[str, str],
) -> Checkpointer | None:
    """Return the checkpoints of these ranks, of a round; None without a place, which rank 0 of a job says. Collective.

    `keep`: as Session's `keep` and `keep_every`.
    """
    peers, number = of
    if place:
        from spotsup_trainer.session.checkpoint import Checkpointer  # a second, for DCP
        from spotsup_trainer.session.memory import Keeper

        return Checkpointer(
            place if isinstance(place, str) else Path(place),
            state,
            peers,
            keep[0],
            keep_every=keep[1],
            round_number=number,
            warn_after_s=warn_after_s,
            resume_from=earlier_places(environ),
            keeper=Keeper.named_by(environ, peers.rank, peers.world),
        )
    if environ.get("SPOTSUP_YIELD_FILE") and peers.rank == 0:
        print(
            "spotsup: there is no place for checkpoints: training starts over after every interruption",
            file=sys.stderr,
            flush=True,
        )
    return None
