"""Copies the newest complete checkpoint of an object store to a folder, where torch's own tools read it.

python -m spotsup_trainer.session.fetch s3://BUCKET/PREFIX/JOB-ID FOLDER
python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER/step_00000150 weights.pt
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from spotsup_trainer.objects import url as urls
from spotsup_trainer.objects.store import Store, StoreError, open_store
from spotsup_trainer.session.checkpoint_bucket import bucket_checkpoints
from spotsup_trainer.session.checkpoint_dir import POSITION_FILE, CheckpointError

_PART = re.compile(r"(.+)\.\d{5,}")


def fetch(store: Store, target: Path) -> Path:
    """Copy the newest checkpoint from which nothing is missing; the folder below `target` that has it then.

    Raises CheckpointError without one, StoreError, and OSError if the disk refuses.
    """
    for checkpoint in bucket_checkpoints(store):
        try:
            objects, position = checkpoint.path.checked_objects(), checkpoint.position()
        except CheckpointError as error:
            print(f"skipping {checkpoint.path}: {error}", file=sys.stderr)
            continue
        complete = target / f"step_{checkpoint.step:08d}"
        unfinished = complete.with_name(f"{complete.name}.tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for each in objects:  # parts follow each other: they are in the order of their names
            match = _PART.fullmatch(each.name)
            assert match, f"{each.name} is no part of a file"
            with (unfinished / match[1]).open("ab") as file:
                file.write(store.get_range(f"{checkpoint.path.name}/{each.name}", 0, each.size) if each.size else b"")
        (unfinished / POSITION_FILE).write_text(json.dumps(asdict(position)))
        unfinished.replace(complete)
        return complete
    raise CheckpointError(f"there is no complete checkpoint in {store.url}")


def main() -> int:
    """Print the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", help="the address of a run's checkpoints")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    try:
        print(fetch(open_store(urls.checked(options.place)), options.folder))
    except (StoreError, CheckpointError, OSError, ValueError) as error:
        print(f"fetch: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
