"""Parsing only what changed gives the same as parsing everything."""

from __future__ import annotations

from types import MappingProxyType

from hypothesis import example, given, settings
from hypothesis import strategies as st
from spotsup_trainer.etcd import KeyValue
from spotsup_trainer.etcd.mirror import MirrorView
from spotsup_trainer.wire import Keys, Progress, encode

from benchmarks.control.daemon import population
from supervisor.journal.reading import Reader, Reading

KEYS = Keys("bench")
WHOLE = population(3, 2, 1_000_000.0)
FOREIGN = {
    f"{KEYS.run('job-000')}hint": b"{}",
    f"{KEYS.run('job-001')}notice/somebody": b"not even JSON",
    f"{KEYS.run('unheard-of')}hint": b"{}",
    f"{KEYS.world}alerts/one": b"{}",
    f"{KEYS.world}alerts/two": b"{}",
    f"{KEYS.run('job-002')}tombstone/job-002-bench-1": b"{}",
}
STEPS = [
    (KEYS.progress(job), encode(Progress(1, step, 1.0, 1.0))) for job in ("job-000", "unheard-of") for step in (7, 8)
]
EVERYTHING = [*sorted((WHOLE | FOREIGN).items()), *STEPS, (KEYS.progress("job-000"), b"no progress")]


def view_of(keys: dict[str, KeyValue], revision: int) -> MirrorView:
    return MirrorView(MappingProxyType(dict(keys)), revision, live=True)


def read_by_a_new_reader(view: MirrorView) -> Reading:
    return Reader(KEYS).read(view)


HINT, PROGRESS = f"{KEYS.world}run/job-000/hint", f"{KEYS.world}run/job-000/progress"


@settings(deadline=None)
@example([[((HINT, b"{}"), False)], [((HINT, b"{}"), True), ((PROGRESS, b"no progress"), True)]])
@given(st.lists(st.lists(st.tuples(st.sampled_from(EVERYTHING), st.booleans()), max_size=12), max_size=12))
def test_after_any_changes_a_reader_has_what_a_new_one_reads(
    batches: list[list[tuple[tuple[str, bytes], bool]]],
) -> None:
    reader, keys = Reader(KEYS), {key: KeyValue(key, value, 1, 1) for key, value in WHOLE.items()}
    for revision, batch in enumerate(batches, start=2):
        before = reader.read(view_of(keys, revision - 1)).jobs
        for (key, value), there in batch:
            if there:
                keys[key] = KeyValue(key, value, 1, revision)
            else:
                keys.pop(key, None)
        view = view_of(keys, revision)
        found = reader.read(view)
        assert found == read_by_a_new_reader(view)
        untouched = before.keys() & found.jobs.keys() - {name for (key, _), _ in batch for name in key.split("/")}
        assert all(found.jobs[name] is before[name] for name in untouched)


def test_a_step_changes_only_the_jobs_progress() -> None:
    reader, keys = Reader(KEYS), {key: KeyValue(key, value, 1, 1) for key, value in WHOLE.items()}
    before = reader.read(view_of(keys, 1)).jobs["job-000"]
    key, value = STEPS[0]
    keys[key] = KeyValue(key, value, 1, 2)
    after = reader.read(view_of(keys, 2)).jobs["job-000"]
    assert after.progress == Progress(1, 7, 1.0, 1.0)
    assert after.nodes is before.nodes
    assert after.members is before.members


def test_keys_with_the_same_bytes_are_not_parsed_again() -> None:
    reader = Reader(KEYS)
    first = reader.read(view_of({key: KeyValue(key, value, 1, 1) for key, value in WHOLE.items()}, 1))
    again = reader.read(view_of({key: KeyValue(key, value, 7, 7) for key, value in WHOLE.items()}, 7))
    node = next(iter(first.jobs["job-000"].nodes))
    assert again.jobs["job-000"].nodes[node] is first.jobs["job-000"].nodes[node]
    assert again.jobs["job-000"].revisions[node] == 7
