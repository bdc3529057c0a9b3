"""How much of a job's messages in etcd is read, and how much output it may have there.

A job of 64 nodes has some 500 messages of 200 bytes, and 16 MiB of output, and the last MiB of each of
the hundred nodes that are remembered.
"""

from __future__ import annotations

from spotsup_trainer.etcd.quota import Quota

MAX_JOB_KEYS = 5_000
MAX_JOB_BYTES = 8 * 2**20
MAX_MESSAGE_BYTES = 256 * 2**10
MAX_OUTPUT_KEYS = 100_000
MAX_OUTPUT_BYTES = 192 * 2**20


def messages_quota(world: str) -> Quota:
    """Return the quota of what nodes write: all below `run/JOB/` but `ctl/`, which is the daemon's."""
    prefix = f"{world}run/"

    def job_of(key: str) -> str:
        if not key.startswith(prefix):
            return ""
        job, _, below = key[len(prefix) :].partition("/")
        return "" if below.startswith("ctl/") else job

    return Quota(job_of, MAX_JOB_KEYS, MAX_JOB_BYTES, MAX_MESSAGE_BYTES)
