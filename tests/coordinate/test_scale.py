"""A million chunks: whatever is done again and again costs what has changed, counted in operations and in looks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinate.memory import MemoryStore

from holdfast.coordinate import claims, protocol
from holdfast.coordinate.claims import Claims
from holdfast.coordinate.finals import Finals
from holdfast.coordinate.job import JOB
from holdfast.coordinate.living import Living
from holdfast.coordinate.pages import PAGE, Pages, read_ends
from holdfast.coordinate.progress import Progress, Run, runs_of
from holdfast.coordinate.records import Dead, Done, Lease, to_line

MILLION = 1_000_000


def worker(store: MemoryStore, rank: int, finished: list[Run], *, chunks: int = MILLION, world: int = 2) -> Claims:
    return Claims(
        store,
        owner=f"life{rank}",
        chunks=chunks,
        ttl=10.0,
        rank=rank,
        replication=1,
        living=Living(world),
        finished=finished,
    )


def test_a_job_that_goes_on_passes_over_what_had_ended_in_one_step() -> None:
    store = MemoryStore()
    first = worker(store, 0, [(0, 400_000), (400_001, MILLION - 10)])
    drawn = [lease.chunk for _ in range(11) for lease in first.draw(0.0)]
    assert drawn == [400_000, *range(MILLION - 10, MILLION)]
    assert store.operations <= 3 * len(drawn) + 4  # a ticket, a record and a jump each, and not a million tickets


class Counted(Progress):
    """Counts how often it is asked."""

    asked = 0

    def __contains__(self, chunk: int) -> bool:
        self.asked += 1
        return super().__contains__(chunk)


def test_a_heartbeat_costs_what_has_changed_also_while_one_old_chunk_is_still_open() -> None:
    store, chunks = MemoryStore(), 20_000
    owner, watcher = worker(store, 0, [], chunks=chunks + 1000), worker(store, 1, [], chunks=chunks + 1000)
    owner.table.claim(0.0, chunks)
    for chunk in range(1, chunks):  # all but the first
        owner.table.commit(chunk, 1, 0.0)
    watcher.table.done = done = Counted(chunks + 1000)
    for moment in (1.0, 2.0):
        watcher.beat(moment)  # sees what has ended, and strikes it off
    assert done.low == 0
    before, done.asked = store.operations, 0
    watcher.beat(3.0)
    assert store.operations - before <= 8
    assert done.asked <= 2000  # a page of the oldest records, and what is open: not all twenty thousand


def commit(store: MemoryStore, chunks: range) -> None:
    for chunk in chunks:
        store.values[f"chunk/{chunk}"] = Done(chunk, "someone", 1, "a result").encode()
    store.values["tickets"] = str(chunks.stop).encode()


def test_saving_again_reads_and_writes_only_what_has_ended_since() -> None:
    store = MemoryStore()
    finals = Finals(store, MILLION, [])
    commit(store, range(50_000))
    pages, finished = finals.read()
    assert (finished, len(pages) > 3) == ([(0, 50_000)], True)
    commit(store, range(50_000, 50_003))
    before = store.operations
    again, finished = finals.read()
    assert store.operations - before == 2  # the count of chunks drawn, and three records in one operation
    assert finished == [(0, 50_003)]
    assert all(old is new for old, new in zip(pages[:-1], again[:-1], strict=True))  # not even copied
    assert [entry.chunk for entry in read_ends(again)] == list(range(50_003))


def test_a_chunk_that_is_open_is_asked_for_again_until_it_has_ended() -> None:
    store = MemoryStore()
    commit(store, range(10))
    store.values["chunk/4"] = Lease(4, "someone").encode()
    del store.values["chunk/7"]
    finals = Finals(store, 12, [(2, 3)])
    assert finals.read()[1] == [(0, 4), (5, 7), (8, 10)]
    commit(store, range(12))
    pages, finished = finals.read()
    assert finished == [(0, 12)]
    assert sorted(entry.chunk for entry in read_ends(pages)) == [0, 1, *range(3, 12)]


@given(st.lists(st.text(max_size=50), max_size=30), st.integers(1, 5))
def test_pages_give_back_what_was_put_on_them_and_each_fits_into_a_record(payloads: list[str], times: int) -> None:
    entries: list[Done | Dead] = [
        Dead(chunk, "o", 1, 5, payload) if chunk % 3 == 0 else Done(chunk, "o", 1, payload * times)
        for chunk, payload in enumerate(payloads)
    ]
    pages = Pages(to_line(entry.chunk, entry.encode()) for entry in entries).texts()
    assert list(read_ends(json.loads(json.dumps(pages)))) == entries


def test_no_page_is_larger_than_the_smallest_store_takes() -> None:
    pages = Pages(to_line(chunk, Done(chunk, "o", 1, "x" * 10_000).encode()) for chunk in range(200)).texts()
    assert len(pages) > 3
    assert max(map(len, pages)) <= PAGE


@given(st.integers(1, 60), st.data())
def test_progress_agrees_with_a_set_of_numbers(chunks: int, data: st.DataObject) -> None:
    before = data.draw(st.frozensets(st.integers(0, chunks - 1)))
    progress, known = Progress(chunks, runs_of(sorted(before))), set(before)
    for action in data.draw(st.lists(st.tuples(st.sampled_from(["add", "settle", "mark"]), st.integers(0, 59)))):
        what, number = action
        number %= chunks
        if what == "add":
            progress.add(number)
            known.add(number)
        elif what == "settle":
            progress.settle(data.draw(st.one_of(st.none(), st.integers(0, chunks))))
        else:
            progress.raise_low(number)
            known |= set(range(number))
        open_chunks = sorted(set(range(chunks)) - known)
        assert [chunk in progress for chunk in range(chunks)] == [chunk in known for chunk in range(chunks)]
        assert progress.runs() == runs_of(sorted(known))
        assert progress.open_chunks(5) == open_chunks[:5]
        assert progress.first_open(number) == next((chunk for chunk in open_chunks if chunk >= number), chunks)


def test_a_state_of_the_second_version_still_loads() -> None:
    results = [[0, "done", "someone", 1, "a", ""], [3, "dead", "someone", 1, 5, "Traceback …"]]
    state = {
        "version": 2,
        "job": "3fa2b1c4",
        "name": "job",
        "order": "x",
        "positions": [0, 40],
        "chunk_size": 4,
        "generation": 2,
        "finished": [[0, 1], [3, 4]],
        "results": results,
    }
    assert list(read_ends(JOB.from_json(state).results)) == [
        Done(0, "someone", 1, "a"),
        Dead(3, "someone", 1, 5, "Traceback …"),
    ]


@pytest.mark.parametrize("payload", ["", 'ü\u2028\n"[', "x" * 1000])
def test_a_record_is_the_same_by_its_bytes_and_by_its_line(payload: str) -> None:
    done = Done(7, "someone", 3, payload, "part-7")
    assert list(read_ends([to_line(7, done.encode())])) == [done]


def test_a_heartbeat_reads_a_bounded_number_of_records_however_far_the_mark_fell_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after an old chunk has ended at last above which a million others had, or for a worker that joins before."""
    for module in (claims, protocol):
        monkeypatch.setattr(module, "MAX_READS", limit := 1024)
    store, chunks = MemoryStore(), 5 * limit
    commit(store, range(chunks))
    late = worker(store, 1, [], chunks=chunks + 1000)
    beats = 0
    while late.table.done.low < chunks:
        before, beats = store.operations, beats + 1
        late.beat(float(beats))
        assert store.operations - before <= 2 * limit // protocol.READ_AT_ONCE + 8
        assert beats <= 5
    assert beats > 2
