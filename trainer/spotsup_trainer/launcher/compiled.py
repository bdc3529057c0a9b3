"""Where workers keep what torch.compile and Triton have compiled: below the run folder of the job's node, so that it
survives rounds, and goes with the job's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER = "compiled"
_FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def cache_folders(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for all workers. None of those that the job sets itself, and none where the run folder is a temporary
    one: then torch's own default outlives it."""
    run_dir = environ.get("SPOTSUP_RUN_DIR")
    if not run_dir:
        return {}
    base = Path(run_dir).absolute() / FOLDER
    return {name: str(base / folder) for name, folder in _FOLDERS.items() if not environ.get(name)}
