"""How the events in the outbox reach people: which channel is sent what now, and what leaves the outbox.

An event stays there until each channel that takes it has it, or until too many wait. What a channel has while others
lag is marked beside the outbox, so that a takeover sends nobody the same again that was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType

from spotsup_trainer.wire import Keys

from supervisor.alerts.batches import ChannelState, after, next_batch
from supervisor.alerts.routes import Channel
from supervisor.alerts.senders import Outgoing
from supervisor.alerts.stories import Story, Thread
from supervisor.events import EventKind
from supervisor.model import Event
from supervisor.planner.actions import MAX_OPERATIONS, Action, AlertsDone, Commit, SendAlerts
from supervisor.planner.boundary import Boundary
from supervisor.planner.stories import story_of
from supervisor.planner.world import JobView, Problem, VolatileState, World
from supervisor.starting_time import moment

# Events that wait for a channel that is away. Beyond, the oldest of the lowest level are dropped, and people are told.
MAX_WAITING = 5000
DROPPED_AT_ONCE = 100
MAX_COMMITS_AT_ONCE = 4
UPDATE_S = 10.0  # between two changes of a thread's first message
THREAD_KEPT_S = 86400.0  # after the end of its job
FAILING_S = 60.0  # a channel that fails for so long is named in the daemon's status
FAILING_TOLD_S = 600.0  # of one that fails for so long, people are told through the others


def due_deliveries(world: World, within: Boundary, now: float) -> list[Action]:
    """Return the deliveries that are due: at most one per channel at a time. A channel or a story that fails concerns
    no other (P11)."""
    idle = [each for each in world.rules.channels_used if f"alerts:{each.name}" not in world.busy]
    due = [
        within.within(f"(alerts to {channel.name})", partial(_due, world, channel, within, now), None)
        for channel in idle
    ]
    return [each for each in due if each is not None]


def _due(world: World, channel: Channel, within: Boundary, now: float) -> SendAlerts | None:
    state = _state(world.volatile, channel)
    events = next_batch(channel, state, pending(world, channel), now)
    stories, threads = _stories(world, channel, state, events, within, now) if channel.threads else ({}, {})
    return SendAlerts(channel, Outgoing(events, stories, threads, now)) if events or stories else None


def pending(world: World, channel: Channel) -> list[Event]:
    """Return what a channel takes and has not got, in the order in which it was written."""
    if not world.alerts:
        return []
    has = world.alerted.get(channel.name, frozenset()) | _state(world.volatile, channel).delivered
    return [event for event in world.alerts if event.id not in has and channel.takes(event)]


def threads_of(world: World, channel: Channel) -> Mapping[str, Thread]:
    """Return a channel's threads by task id: as the journal has them, and as they have changed since."""
    known: dict[str, Thread | None] = {**world.threads.get(channel.name, {}), **_state(world.volatile, channel).threads}
    return {task: thread for task, thread in known.items() if thread is not None}


def absorb_delivery(volatile: VolatileState, done: AlertsDone, now: float) -> VolatileState:
    """Return the state with one more attempt."""
    channel = done.channel
    state = after(channel, _state(volatile, channel), done.message, done.receipt, now)
    state = replace(state, threads=MappingProxyType({**state.threads, **done.receipt.threads}))
    return replace(volatile, alert_channels=MappingProxyType({**volatile.alert_channels, channel.name: state}))


def clear_outbox(world: World, keys: Keys, now: float) -> tuple[list[Commit], VolatileState]:
    """Return the commits that remove events which all their channels have, mark those that some have, drop what is too
    much, and note threads; and the state without what the journal shows by now."""
    puts, deletes = _marks(world, keys)
    dropped, commits = _dropped(world, keys, deletes, now), []
    for channel in world.rules.channels_used:
        state, known = _state(world.volatile, channel), world.threads.get(channel.name, {})
        for task, thread in state.threads.items():
            if thread != known.get(task):
                key = f"{keys.world}threads/{channel.name}/{task}"
                puts |= {key: thread.encode()} if thread else {}
                deletes += [] if thread else [key]
        deletes += [f"{keys.world}threads/{channel.name}/{task}" for task in _over(world, known, now)]
    operations: list[tuple[str, bytes | None]] = [*((key, None) for key in deletes), *puts.items()]
    for begin in range(0, min(len(operations), MAX_COMMITS_AT_ONCE * MAX_OPERATIONS), MAX_OPERATIONS):
        part = operations[begin : begin + MAX_OPERATIONS]
        commits.append(
            Commit(
                job="",
                guards={},
                put_keys={key: value for key, value in part if value is not None},
                delete_keys=[key for key, value in part if value is None],
            )
        )
    return [*commits, *dropped], _pruned(world)


def failing_channels(world: World, now: float) -> tuple[str, ...]:
    """Return for the daemon's status the channels that have failed for a while."""
    found = []
    for channel in world.rules.channels_used:
        state = _state(world.volatile, channel)
        if state.error and now - state.failing_since >= FAILING_S:
            since = datetime.fromtimestamp(state.failing_since, UTC).strftime("%H:%M UTC")
            found.append(f"alerts wait for {channel.name} since {since}: {state.error}")
    return tuple(found)


def channel_problems(world: World) -> Iterator[Problem]:
    """Yield the channels that have taken nothing for long: the others hear of it."""
    for channel in world.rules.channels_used:
        state = _state(world.volatile, channel)
        if state.error:
            yield Problem(
                EventKind.CHANNEL_FAILING,
                channel.name,
                state.failing_since,
                f"alerts wait for the channel {channel.name} since {moment(state.failing_since)}: {state.error}. They "
                "are kept, and sent once it takes them: `spotsupd alert test` shows what it answers",
                FAILING_TOLD_S,
                over=f"the channel {channel.name} takes alerts again",
                in_headline=False,  # failing_channels is sooner
            )


def _state(volatile: VolatileState, channel: Channel) -> ChannelState:
    return volatile.alert_channels.get(channel.name, ChannelState())


def _stories(
    world: World, channel: Channel, state: ChannelState, events: Sequence[Event], within: Boundary, now: float
) -> tuple[dict[str, Story], dict[str, Thread]]:
    """Return the stories of the jobs that these events are of; without events, of a job whose first message is out of
    date."""
    threads, jobs = threads_of(world, channel), {event.job for event in events}
    found: dict[str, Story] = {}
    if events:
        for view in (world.jobs[name] for name in sorted(jobs & world.jobs.keys())):
            if story := _story(view, within, now):
                found[view.record.task_id] = story
    elif threads and now >= state.next_at and channel.pace.allows(state.used, now, 2.0):  # one is kept for an event
        for view in world.jobs.values():
            task = view.record.task_id
            if task in threads and now - threads[task].at >= UPDATE_S:
                story = _story(view, within, now)
                if story and story.sentence() != threads[task].shown:
                    found = {task: story}
                    break
    return found, {task: thread for task, thread in threads.items() if task in found}


def _story(view: JobView, within: Boundary, now: float) -> Story | None:
    return within.within(f"(the story of {view.name})", partial(story_of, view, now), None)


def _marks(world: World, keys: Keys) -> tuple[dict[str, bytes], list[str]]:
    """Return what is to be marked as delivered, and the keys of what all channels have."""
    puts: dict[str, bytes] = {}
    deletes: list[str] = []
    channels = world.rules.channels_used
    waiting = set()
    for event in world.alerts:
        takers = [channel for channel in channels if channel.takes(event)]
        marked = [each for each in takers if event.id in world.alerted.get(each.name, frozenset())]
        new = [each for each in takers if each not in marked and event.id in _state(world.volatile, each).delivered]
        if len(marked) + len(new) == len(takers):
            deletes.append(f"{keys.world}alerts/{event.id}")
        else:
            waiting.add(event.id)
            puts |= {f"{keys.world}alerted/{channel.name}/{event.id}": b"{}" for channel in new}
    for name, marks in world.alerted.items():
        deletes += [f"{keys.world}alerted/{name}/{event_id}" for event_id in sorted(marks - waiting)]
    return puts, deletes


def _dropped(world: World, keys: Keys, deletes: Sequence[str], now: float) -> list[Commit]:
    """Return the commit that drops the oldest events of the lowest level, where more wait than are kept, and says
    so."""
    if len(world.alerts) - len(deletes) <= MAX_WAITING:
        return []
    in_order = sorted(enumerate(world.alerts), key=lambda each: (each[1].kind.level, each[0]))
    chosen = [event for _, event in in_order[:DROPPED_AT_ONCE]]
    first = min(chosen, key=lambda event: event.at)
    since = datetime.fromtimestamp(first.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    text = (
        f"{len(chosen)} alerts since {since} were dropped, the least important first: more than {MAX_WAITING} wait for "
        "a channel that takes none. `spotsupctl events JOB` still has those of jobs"
    )
    event = Event(f"alerts-dropped-{first.id}", now, "", EventKind.ALERTS_DROPPED, text, data={"count": len(chosen)})
    gone = [f"{keys.world}alerts/{each.id}" for each in chosen]
    return [Commit(job="", guards={}, events=[event], alerts=[event], delete_keys=gone)]


def _over(world: World, threads: Mapping[str, Thread], now: float) -> list[str]:
    """Threads of jobs that ended long ago, or whose names were used again."""
    if not threads:
        return []
    kept = {
        view.record.task_id
        for view in world.jobs.values()
        if not view.record.ended or now - view.record.ended_at < THREAD_KEPT_S
    }
    return sorted(threads.keys() - kept) if not world.unreadable_jobs else []


def _pruned(world: World) -> VolatileState:
    volatile, waiting = world.volatile, {event.id for event in world.alerts}
    states = {}
    for name, state in volatile.alert_channels.items():
        known = world.threads.get(name, {})
        threads = {task: thread for task, thread in state.threads.items() if thread != known.get(task)}
        if len(threads) != len(state.threads) or not state.delivered <= waiting:
            kept = MappingProxyType(threads)
            states[name] = replace(state, delivered=state.delivered & waiting, threads=kept)
    if not states:
        return volatile
    return replace(volatile, alert_channels=MappingProxyType({**volatile.alert_channels, **states}))
