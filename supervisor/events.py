"""What can happen: one line for each kind of event, with all that alerts, the dashboard and the glossary say of it."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple, Self


class Level(IntEnum):
    """CRITICAL: a person is needed. WARNING: one may be soon. INFO: good to know. OFF: nothing is sent, as a limit."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3
    OFF = 4


class Alert(NamedTuple):
    """How an event goes to people: `supervisor.alerts`."""

    level: Level
    sign: str  # in Slack
    # Of a kind that comes in bulk when a zone is taken: three or more of one job are one line, "N nodes" and this.
    bulk: str = ""


class EventKind(StrEnum):
    """What can happen to a job, a node, or the cluster: all that is known of a kind is its line here."""

    means: str  # as the glossary has it
    alert: Alert | None  # None: it goes to nobody
    tone: str  # its colour on the dashboard: bad, near, good or calm

    def __new__(cls, value: str, means: str, alert: Alert | None = None, tone: str = "calm") -> Self:
        made = str.__new__(cls, value)
        made._value_, made.means, made.alert, made.tone = value, means, alert, tone
        return made

    SUBMITTED = "submitted", "a user submitted the job"
    SCALED = "scaled", "a user changed how many nodes it wants"
    LIMITS_CHANGED = "limits-changed", "a user changed its limits"
    LIMIT_NEAR = "limit-near", "80 % of `limits.hours` or `limits.usd` are used", Alert(Level.WARNING, ":hourglass:")
    LIMIT_REACHED = (
        "limit-reached",
        "one of them is reached: the job checkpoints and pauses",
        Alert(Level.CRITICAL, ":double_vertical_bar:"),
        "near",
    )
    DISPLACED = (
        "displaced",
        "it checkpoints and pauses for a job of a higher priority, and goes on by itself",
        Alert(Level.WARNING, ":double_vertical_bar:"),
    )
    DEADLINE_MISSED = (
        "deadline-missed",
        "it cannot finish by its `finish_by` any more, on whatever machines",
        Alert(Level.WARNING, ":alarm_clock:"),
    )
    BUDGET_NEAR = "budget-near", "50 % or 80 % of a budget of the month are spent", Alert(Level.WARNING, ":hourglass:")
    BUDGET_REACHED = (
        "budget-reached",
        "a budget of the month is spent: the jobs that draw on it pause",
        Alert(Level.CRITICAL, ":double_vertical_bar:"),
        "near",
    )
    CANCEL_REQUESTED = "cancel-requested", "a user cancelled it"
    PAUSE_REQUESTED = "pause-requested", "a user paused it"
    PAUSED = "paused", "all its nodes are released"
    RESUMED = "resumed", "a user resumed it, or there is room for it again"
    DRAIN_REQUESTED = "drain-requested", "a user wants a node replaced and released"
    ADOPTED = "adopted", "instances that the journal had lost were taken over"
    LAUNCH_REQUESTED = "launch-requested", "a cloud was asked for an instance"
    LAUNCH_REFUSED = "launch-refused", "a cloud refused one", None, "near"
    MOVED = (
        "moved",
        "enough nodes are ready elsewhere, or on spot: the job changes its round once, and leaves the others",
    )
    MOVE_GIVEN_UP = "move-given-up", "machines that were requested for a move are given back: too few came, or too late"
    PLACE_CHANGED = "place-changed", "a job whose place has no machine for it goes to the next one that it names"
    KEPT_WARM = "kept-warm", "machines of a job that has ended wait for the next one"
    TAKEN_OVER = "taken-over", "a job begins on a machine of one that has ended"
    CLEANING_FAILED = (
        "cleaning-failed",
        "a machine on which something of its job may be left is terminated, and waits for nobody",
    )
    TOO_FEW_NODES = (
        "too-few-nodes",
        "machines that were too few to train, in a place that grants no more, are given back",
        None,
        "near",
    )
    NOTICE = "notice", "a node will be preempted", Alert(Level.INFO, ":warning:", "will be preempted"), "near"
    NODE_LOST = "node-lost", "a node is gone without having left", Alert(Level.WARNING, ":boom:", "are lost"), "bad"
    NODE_SUSPECT = (
        "node-suspect",
        "a node is silent, and its cloud has not said that it ended",
        Alert(Level.INFO, ":mute:", "are silent"),
        "near",
    )
    SILENCE = (
        "silence",
        "silent nodes are kept: they are many, steps advance, or their cloud was not listed since; repeated each hour",
        Alert(Level.WARNING, ":mute:"),
    )
    SILENCE_ENDED = "silence-ended", "they are heard again, or known to have ended", Alert(Level.INFO, ":loud_sound:")
    NODE_FAILED = "node-failed", "a node could not be launched or bootstrapped", None, "bad"
    BOOTSTRAPS_FAILING = (
        "bootstraps-failing",
        "a job that has trained lacks nodes: several in a row could not be bootstrapped; it goes on with what it has",
        Alert(Level.CRITICAL, ":rotating_light:"),
    )
    BOOTSTRAPS_RECOVERED = (
        "bootstraps-recovered",
        "its nodes can be bootstrapped again",
        Alert(Level.INFO, ":white_check_mark:"),
    )
    NODE_UNHEALTHY = (
        "node-unhealthy",
        "a GPU of a node cannot train any more; the node is replaced",
        Alert(Level.WARNING, ":face_with_thermometer:", "have unhealthy GPUs and are replaced"),
        "bad",
    )
    UNHEALTHY_HELD = (
        "unhealthy-held",
        "so many nodes report unhealthy GPUs at once that none is replaced",
        Alert(Level.CRITICAL, ":raised_hand:"),
    )
    NODE_SLOW = (
        "node-slow",
        "all others wait for a node at each step for 10 min now ([what is compared](training/failures.md#a-slow-node))",
        Alert(Level.WARNING, ":turtle:", "are slow, and all others wait for them"),
        "near",
    )
    SLOW_ENDED = (
        "slow-ended",
        "it has been as fast as the others for as long",
        Alert(Level.INFO, ":white_check_mark:"),
        "good",
    )
    MACHINE_TYPE_BLOCKED = (
        "machine-type-blocked",
        "several instances of a type in a row were unhealthy: it is not requested for an hour",
        Alert(Level.WARNING, ":shield:"),
    )
    FOREIGN_HOST = (
        "foreign-host",
        "an address answered with a host key that is not the node's",
        Alert(Level.CRITICAL, ":no_entry:"),
    )
    REPLACEMENT_REQUESTED = (
        "replacement-requested",
        "a replacement was requested",
        Alert(Level.INFO, ":hourglass_flowing_sand:", "are requested as replacements"),
    )
    REPLACEMENT_JOINED = (
        "replacement-joined",
        "a replacement is in the round",
        Alert(Level.INFO, ":white_check_mark:", "joined in place of others"),
        "good",
    )
    ROUND = "round", "a round formed", None, "good"
    TRAINING_PAUSED = (
        "training-paused",
        "training goes on in a new round: how long it stood still, and [what took how long](#parts-of-a-pause)",
    )
    CHECKPOINTS_FAILING = (
        "checkpoints-failing",
        "checkpoints are not being written",
        Alert(Level.CRITICAL, ":rotating_light:"),
        "bad",
    )
    CHECKPOINTS_RESUMED = "checkpoints-resumed", "checkpoints are written again", Alert(Level.INFO, ":floppy_disk:")
    STEPS_HANG = (
        "steps-hang",
        "no rank has given a sign of life for long",
        Alert(Level.CRITICAL, ":rotating_light:"),
        "bad",
    )
    STEPS_RESUMED = "steps-resumed", "a step was completed again", Alert(Level.INFO, ":white_check_mark:")
    WORKERS_STUCK = (
        "workers-stuck",
        "workers outlive SIGKILL, or work on long after others have ended",
        Alert(Level.WARNING, ":warning:", "have workers that are stuck"),
        "bad",
    )
    CHECKPOINTS_TOO_SLOW = (
        "checkpoints-too-slow",
        "a checkpoint takes longer than a preemption's notice is ahead",
        Alert(Level.WARNING, ":hourglass_flowing_sand:"),
    )
    JOB_DONE = "job-done", "the job succeeded", Alert(Level.INFO, ":tada:"), "good"
    JOB_FAILED = "job-failed", "the job failed", Alert(Level.CRITICAL, ":x:"), "bad"
    JOB_CANCELLED = "job-cancelled", "the job was cancelled"
    ORPHAN = (
        "orphan",
        "an instance that the journal does not know was ended",
        Alert(Level.INFO, ":broom:", "were not in the journal, and are ended"),
    )
    UNJOURNALED = (
        "unjournaled",
        "instances that the journal does not know are left alone: etcd may have lost them; repeated ever more seldom",
        Alert(Level.CRITICAL, ":mag:"),
    )
    UNKNOWN_CODE = (
        "unknown-code",
        "a cloud answered with an error code that is in no table",
        Alert(Level.WARNING, ":grey_question:"),
    )
    ACCESS_DENIED = (
        "access-denied",
        "a cloud has denied all calls for a minute, for lack of valid credentials: jobs wait",
        Alert(Level.CRITICAL, ":lock:"),
    )
    ACCESS_RESTORED = "access-restored", "it accepts them again", Alert(Level.INFO, ":unlock:")
    FLOODED = (
        "flooded",
        "a job's nodes wrote more into etcd than a job may: it pauses, its user, machines and messages go",
        Alert(Level.CRITICAL, ":ocean:"),
    )
    NOT_ENDED = (
        "not-ended",
        "a cloud has not ended machines, or removed what they left behind, for ten minutes, an hour: they cost money",
        Alert(Level.CRITICAL, ":money_with_wings:"),
    )
    NOT_LISTED = (
        "not-listed",
        "a cloud has not said for five minutes which machines run, or for an hour what they left behind",
        Alert(Level.WARNING, ":fog:"),
    )
    LISTING_DOUBTED = (
        "listing-doubted",
        "a cloud does not list machines whose nodes work: other credentials, project, subscription or regions?",
        Alert(Level.CRITICAL, ":detective:"),
    )
    LAUNCH_UNCLEAR = (
        "launch-unclear",
        "a cloud has not said for ten minutes whether it launched a machine, which may run and cost money",
        Alert(Level.CRITICAL, ":grey_question:"),
    )
    CLOUD_MISSING = (
        "cloud-missing",
        "machines run on a cloud that the leading daemon's configuration does not have any more",
        Alert(Level.CRITICAL, ":cloud:"),
    )
    SOLVED = "solved", "such a problem is over", Alert(Level.INFO, ":white_check_mark:")
    CERTIFICATE_ENDS = (
        "certificate-ends",
        "less than a tenth of the life of etcd's certificate or CA is left; once a week",
        Alert(Level.WARNING, ":hourglass:"),
    )
    CONSOLE_TAIL = "console-tail", "the end of the console of an instance that was never ready"
    LOG_TAIL = "log-tail", "the end of the log of a node that was never ready"
    UNDECIDED = (
        "undecided",
        "something was left as it is, since deciding about it failed: an error in spotsup",
        Alert(Level.CRITICAL, ":beetle:"),
    )
    UNREADABLE = (
        "unreadable",
        "a message or a record in etcd cannot be read, and is left alone",
        Alert(Level.WARNING, ":see_no_evil:"),
    )
    WAITS_LONG = (
        "waits-long",
        "a job lacks nodes, or does not train any more, for half an hour; or waits for its first for `alerts.waits_s`",
        Alert(Level.WARNING, ":hourglass:"),
    )
    WAIT_ENDED = "wait-ended", "it trains again", Alert(Level.INFO, ":white_check_mark:")
    QUOTA_REFUSED = (
        "quota-refused",
        "a quota of a cloud is used up; once a day for each. Jobs that lack nodes for it say so (`waits-long`)",
        Alert(Level.WARNING, ":no_entry:"),
    )
    NO_LEADER = "no-leader", "for minutes, no daemon could decide anything", Alert(Level.CRITICAL, ":rotating_light:")
    DAILY_SUMMARY = (
        "daily-summary",
        "what runs and waits, and what the last day brought",
        Alert(Level.INFO, ":newspaper:"),
    )
    TASK_FAILING = (
        "task-failing",
        "something that the daemon does by itself has failed for an hour: backups, schedules, users of etcd, a sweep",
        Alert(Level.WARNING, ":broken_heart:"),
    )
    CHANNEL_FAILING = (
        "channel-failing",
        "a channel has taken no alert for ten minutes: the others hear of it",
        Alert(Level.WARNING, ":no_bell:"),
    )
    ALERTS_DROPPED = (
        "alerts-dropped",
        "too many alerts waited for a channel: the least important were dropped",
        Alert(Level.CRITICAL, ":wastebasket:"),
    )

    @property
    def level(self) -> Level:
        """Return how much it matters; of one that is no alert, INFO."""
        return self.alert.level if self.alert else Level.INFO


ALERT_KINDS = frozenset(kind for kind in EventKind if kind.alert)
