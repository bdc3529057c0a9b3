"""How much each kind of alert matters, and the sign that it has in Slack."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from supervisor.model import EventKind

K = EventKind


class Level(IntEnum):
    """CRITICAL: a person is needed. WARNING: one may be soon. INFO: good to know. OFF: nothing is sent, as a limit."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3
    OFF = 4


_INFO: Mapping[EventKind, str] = {
    K.NOTICE: ":warning:",
    K.NODE_SUSPECT: ":mute:",
    K.SILENCE_ENDED: ":loud_sound:",
    K.REPLACEMENT_REQUESTED: ":hourglass_flowing_sand:",
    K.REPLACEMENT_JOINED: ":white_check_mark:",
    K.BOOTSTRAPS_RECOVERED: ":white_check_mark:",
    K.STEPS_RESUMED: ":white_check_mark:",
    K.CHECKPOINTS_RESUMED: ":floppy_disk:",
    K.ACCESS_RESTORED: ":unlock:",
    K.SOLVED: ":white_check_mark:",
    K.WAIT_ENDED: ":white_check_mark:",
    K.SLOW_ENDED: ":white_check_mark:",
    K.ORPHAN: ":broom:",
    K.DAILY_SUMMARY: ":newspaper:",
    K.JOB_DONE: ":tada:",
}
_WARNING: Mapping[EventKind, str] = {
    K.LIMIT_NEAR: ":hourglass:",
    K.DISPLACED: ":double_vertical_bar:",
    K.DEADLINE_MISSED: ":alarm_clock:",
    K.BUDGET_NEAR: ":hourglass:",
    K.NODE_LOST: ":boom:",
    K.SILENCE: ":mute:",
    K.WAITS_LONG: ":hourglass:",
    K.QUOTA_REFUSED: ":no_entry:",
    K.WORKERS_STUCK: ":warning:",
    K.CHECKPOINTS_TOO_SLOW: ":hourglass_flowing_sand:",
    K.CERTIFICATE_ENDS: ":hourglass:",
    K.UNKNOWN_CODE: ":grey_question:",
    K.NOT_LISTED: ":fog:",
    K.NODE_UNHEALTHY: ":face_with_thermometer:",
    K.NODE_SLOW: ":turtle:",
    K.MACHINE_TYPE_BLOCKED: ":shield:",
    K.UNREADABLE: ":see_no_evil:",
}
_CRITICAL: Mapping[EventKind, str] = {
    K.LIMIT_REACHED: ":double_vertical_bar:",
    K.BUDGET_REACHED: ":double_vertical_bar:",
    K.BOOTSTRAPS_FAILING: ":rotating_light:",
    K.CHECKPOINTS_FAILING: ":rotating_light:",
    K.STEPS_HANG: ":rotating_light:",
    K.ACCESS_DENIED: ":lock:",
    K.UNHEALTHY_HELD: ":raised_hand:",
    K.FOREIGN_HOST: ":no_entry:",
    K.UNJOURNALED: ":mag:",
    K.NOT_ENDED: ":money_with_wings:",
    K.CLOUD_MISSING: ":cloud:",
    K.UNDECIDED: ":beetle:",
    K.NO_LEADER: ":rotating_light:",
    K.ALERTS_DROPPED: ":wastebasket:",
    K.JOB_FAILED: ":x:",
}
LEVELS: Mapping[EventKind, Level] = MappingProxyType(
    {
        kind: level
        for level, kinds in ((Level.INFO, _INFO), (Level.WARNING, _WARNING), (Level.CRITICAL, _CRITICAL))
        for kind in kinds
    }
)
SIGNS: Mapping[EventKind, str] = MappingProxyType({**_INFO, **_WARNING, **_CRITICAL})

# What comes in bulk when a zone is taken: three or more of one kind and job are one line, which names each node.
BULK_KINDS: Mapping[EventKind, str] = MappingProxyType(
    {
        K.NOTICE: "will be preempted",
        K.NODE_LOST: "are lost",
        K.NODE_SUSPECT: "are silent",
        K.REPLACEMENT_REQUESTED: "are requested as replacements",
        K.REPLACEMENT_JOINED: "joined in place of others",
        K.NODE_UNHEALTHY: "have unhealthy GPUs and are replaced",
        K.NODE_SLOW: "are slow, and all others wait for them",
        K.WORKERS_STUCK: "have workers that are stuck",
        K.ORPHAN: "were not in the journal, and are ended",
    }
)


def level_of(kind: EventKind) -> Level:
    """The level of a kind; of one that is no alert, INFO."""
    return LEVELS.get(kind, Level.INFO)
