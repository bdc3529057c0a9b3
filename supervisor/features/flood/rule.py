"""A job whose nodes write more into etcd than a job may: a stolen node, or a program that writes what is not its own.

Whoever has the job's etcd user may write below its prefix without end, and 26 MB of small keys kept every daemon from
starting. What is beyond the quota is not read (record.py); here the job pauses, so that its user and machines
go, then its keys (P11, P16). Its output goes then, too, where that was too much (journal/output_sizes.py).
"""

from __future__ import annotations

from supervisor.events import EventKind
from supervisor.features.flood.record import MAX_JOB_BYTES, MAX_JOB_KEYS, MAX_OUTPUT_BYTES
from supervisor.features.pause.record import PauseRecord
from supervisor.planner.draft import Draft

# In PauseRecord.by; a job that pauses for it has no etcd user any more (journal/users.py).
FLOOD = "messages"


def drive_flood(draft: Draft) -> None:
    """Pause a job that floods etcd, and delete its messages once its machines are gone."""
    if not (draft.view.floods or draft.view.floods_output):
        return
    if draft.view.floods and not draft.billed and (draft.job.ended or draft.job.pause.at):
        draft.delete_key(draft.keys.run(draft.job.name))
    elif not draft.job.ended and draft.job.pause.by != FLOOD:
        draft.set_part(PauseRecord(draft.now, FLOOD))
        draft.add_event(EventKind.FLOODED, f"{draft.job.name} pauses, and its machines are released: {reason(draft)}")


def reason(draft: Draft) -> str:
    """Return why the job is paused, and what to do."""
    return (
        f"its nodes wrote more than {MAX_JOB_KEYS:,} keys or {MAX_JOB_BYTES // 2**20} MiB into etcd, or keep more than "
        f"{MAX_OUTPUT_BYTES // 2**20} MiB of output there, which neither spotsup nor torch does: somebody may have "
        "taken over a node, or the program writes there. Look at its code and logs; "
        f"`spotsupctl resume {draft.job.name}` goes on from its last checkpoint, on new machines"
    )
