"""Whether this machine can write to an object store: bootstrap runs it, with the interpreter that trains."""

from __future__ import annotations

import os
import sys

from spotsup_trainer.objects import url as urls
from spotsup_trainer.objects.store import ObstoreStore, Store, StoreError

# A person waits for it, and what is only slow is found by the first checkpoint.
RETRIES = 3
RETRY_FOR_S = 30


def check(store: Store, node: str) -> str:
    """Write, read, list and delete an object of `node`'s; what does not work, in one sentence, "" if all does."""
    name, text = f"check/{node}", b"spotsup writes this before a node trains"
    try:
        store.put(name, text)
        found = store.get(name)
        if found is None or found[0] != text:
            return f"{store.url}/{name} was written, and cannot be read back"
        if name not in {each.name for each in store.listed("check")}:
            return f"{store.url}/{name} was written, and is not listed"
        store.delete([name])
    except StoreError as error:
        return str(error)
    return ""


def main(url: str, node: str) -> None:
    """Exits with 1 and a sentence if it does not work."""
    try:
        problem = check(ObstoreStore(urls.checked(url), os.environ, retries=RETRIES, retry_for_s=RETRY_FOR_S), node)
    except (StoreError, ValueError) as error:
        problem = str(error)
    if problem:
        sys.exit(f"checkpoints cannot be written: {problem}")
