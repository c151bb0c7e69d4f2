"""A job's life: generations, its folder, its outputs, chunks that fail, and what it tells in the end."""

from __future__ import annotations

import ctypes
import json
import logging
import re
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.cli.main import run
from holdfast.coordinate import Done, FolderSink, LeasedChunk, LeasedReader, StreamCoordinator
from holdfast.coordinate.chunk_size import MAX_CHUNK_BYTES, MAX_CHUNKS, default_chunk_size
from holdfast.coordinate.ledger import Ledger
from holdfast.coordinate.stores.torch_store import TorchStore
from holdfast.coordinate.survey import Survey
from holdfast.errors import (
    ConfigError,
    CoordinationError,
    CoordinatorLost,
    DeadLetterError,
    StaleLeaseError,
    SupersededError,
)
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset

CHUNKS = 10
SIZE = 4


def dataset(transform: Any = None) -> StreamDataset:
    source = ArraySource({"value": np.arange(CHUNKS * SIZE)})
    return StreamDataset(source, name="data", seed=3, shuffle="none", transform=transform)


def hash_store() -> Any:
    return dist.HashStore()  # type: ignore[attr-defined]


@pytest.fixture
def coordinator() -> Iterator[StreamCoordinator]:
    with StreamCoordinator(hash_store(), 1) as coordinator:
        coordinator.register_worker(0)
        yield coordinator


def worker(store: Any, rank: int = 0, **options: Any) -> StreamCoordinator:
    coordinator = StreamCoordinator(store, 2, **options)
    coordinator.register_worker(rank)
    return coordinator


def lease(coordinator: StreamCoordinator, data: StreamDataset | None = None, **options: Any) -> LeasedReader:
    return coordinator.lease(data or dataset(), **{"batch_size": 2, "chunk_size": SIZE, "backoff": 0.0, **options})


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def commit_some(reader: LeasedReader, count: int) -> list[LeasedChunk]:
    """Commit some chunks and stop without giving anything back, as a killed process does."""
    iterator = iter(reader)
    found = [next(iterator) for _ in range(count)]
    for chunk in found:
        chunk.commit(f"sum {chunk.positions.sum()}")
    reader._table._held.clear()
    iterator.close()  # type: ignore[attr-defined]
    return found


# --- the loss of the store -----------------------------------------------------------------------------------------


def test_after_the_loss_of_the_store_nothing_is_repeated_nothing_lost_and_every_result_listed(tmp_path: Path) -> None:
    committed: list[int] = []
    for count in (3, 2, 1):
        with worker(hash_store()) as coordinator:  # a new store each time: the old one is gone
            committed += [chunk.chunk for chunk in commit_some(lease(coordinator, folder=tmp_path), count)]
    with worker(hash_store()) as coordinator:
        reader = lease(coordinator, folder=tmp_path)
        for chunk in reader:
            committed.append(chunk.chunk)
            chunk.commit(f"sum {chunk.positions.sum()}")
        assert reader.generation == 4
        assert [(done.chunk, done.payload) for done in reader.results()] == [
            (chunk, f"sum {sum(range(SIZE * chunk, SIZE * chunk + SIZE))}") for chunk in range(CHUNKS)
        ]
    assert sorted(committed) == list(range(CHUNKS))


class Server(TorchStore):
    """A durable server in memory that can be brought back from an older copy of its data."""

    durable = True

    def __init__(self, lives: list[Any] | None = None) -> None:
        self.lives = [hash_store()] if lives is None else lives
        self.seen = len(self.lives)
        super().__init__(self.lives[-1])

    def __getattribute__(self, name: str) -> Any:
        if name == "_store" and self.seen < len(self.lives):  # each connection learns of a restart by losing touch once
            self.seen = len(self.lives)
            self._store = self.lives[-1]
            raise ConnectionError("the connection was lost")
        return super().__getattribute__(name)

    def clone(self) -> Server:
        return Server(self.lives)

    def copy(self) -> Any:
        copy = hash_store()
        for key in self.lives[-1].list_keys():
            copy.set(key, self.lives[-1].get(key))
        return copy


@pytest.mark.parametrize("journaled", [False, True])
def test_a_store_that_comes_back_with_older_data_is_lost_and_the_job_goes_on_from_its_folder(
    journaled: bool, tmp_path: Path
) -> None:
    server, older = Server(), None
    committed: list[int] = []
    options: Any = {"folder": tmp_path / "job", "sink": FolderSink(tmp_path / "out")}
    with worker(server, ttl=60.0, heartbeat=30.0) as coordinator:
        reader = lease(coordinator, **options)
        iterator = iter(reader)
        for chunk in iterator:
            chunk.open("w").write("x")
            if len(committed) == 6:
                break
            chunk.commit()
            committed.append(chunk.chunk)
            older = server.copy() if len(committed) == 3 else older
        if journaled:
            reader._ledger.flush()  # type: ignore[union-attr]
        server.lives.append(older)
        with pytest.raises(CoordinatorLost, match="older data"):
            chunk.commit()
        iterator.close()  # type: ignore[attr-defined]
    with worker(server) as coordinator:
        reader = lease(coordinator, **options)
        for chunk in reader:
            committed.append(chunk.chunk)
            chunk.open("w").write("x")
            chunk.commit()
        assert [done.chunk for done in reader.results()] == sorted(committed) == list(range(CHUNKS))
    assert len(list((tmp_path / "out").glob("part-*"))) == CHUNKS


def test_no_name_and_no_token_is_ever_handed_out_twice(tmp_path: Path) -> None:
    names: list[str] = []
    tokens: list[tuple[int, int]] = []
    for _ in range(3):
        with worker(hash_store()) as coordinator:
            iterator = iter(lease(coordinator, folder=tmp_path))
            chunk = next(iterator)  # never committed, so the next generation hands it out again
            names.append(chunk.name)
            tokens.append((chunk.chunk, chunk.token))
            iterator.close()  # type: ignore[attr-defined]
    assert len(set(names)) == len(set(tokens)) == 3
    assert tokens == sorted(tokens)


def test_a_zombie_of_the_old_store_can_commit_nothing(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "out")
    zombies = hash_store()
    with worker(zombies) as zombie:
        chunk = next(iterator := iter(lease(zombie, folder=tmp_path / "job", sink=sink)))
        chunk.open().write(b"late")
        with worker(hash_store()) as successor:
            reader = lease(successor, folder=tmp_path / "job", sink=sink)
            with pytest.raises(SupersededError):
                chunk.commit("late")
            reader.process(lambda chunk: "in time")
            assert {done.payload for done in reader.results()} == {"in time"}
        with pytest.raises(SupersededError):  # nor can it begin again
            lease(zombie, folder=tmp_path / "job", sink=sink)
        iterator.close()  # type: ignore[attr-defined]
    assert [file.name for file in (tmp_path / "out").glob("part-*")] == []


def test_a_zombie_whose_output_was_swept_away_hears_that_its_lease_is_stale(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "out")
    with worker(hash_store()) as zombie:
        reader = lease(zombie, folder=tmp_path / "job", sink=sink)
        chunk = next(iterator := iter(reader))
        chunk.open("w").write("what nobody needs")
        with worker(hash_store()) as successor:
            lease(successor, folder=tmp_path / "job", sink=sink).process(lambda chunk: "")
            with pytest.raises(StaleLeaseError, match="was removed"):
                chunk.commit()
        assert reader.chunks_lost == 1
        iterator.close()  # type: ignore[attr-defined]


def test_a_commit_whose_worker_died_before_it_was_kept_is_completed_at_the_end(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "out", suffix=".txt")
    store = hash_store()
    with worker(store) as first:
        reader = lease(first, folder=tmp_path / "job", sink=sink)
        chunk = next(iterator := iter(reader))
        chunk.open("w").write("text")
        file = chunk.settle_output()
        with reader._lock:  # its heartbeat renews the lease meanwhile
            reader._table.commit(chunk.chunk, chunk.token, 0.0, "accepted", file)  # and here it dies
        with worker(store, 1) as second:
            again = lease(second, folder=tmp_path / "job", sink=sink)
            iterator.close()  # type: ignore[attr-defined]
            again.process(lambda chunk: "")
    assert (tmp_path / "out" / file).read_text() == "text"
    assert sorted(Ledger(tmp_path / "job", owner="x").read()) == list(range(CHUNKS))


def test_a_job_does_not_go_on_over_other_data(tmp_path: Path) -> None:
    def over(first: int) -> StreamDataset:
        numbers = np.arange(first, first + CHUNKS * SIZE)
        return StreamDataset(ArraySource({"value": numbers}), name="data", seed=1)

    with worker(hash_store()) as begins:
        reader = lease(begins, over(0), folder=tmp_path / "job")
        commit_some(reader, 3)
        state = reader.state_dict()
    for again in ({"folder": tmp_path / "job"}, {"state": state}):
        with worker(hash_store()) as other, pytest.raises(CoordinationError, match=r"differs from that of .*: data"):
            lease(other, over(1000), **again)
        with worker(hash_store()) as same:
            assert len(lease(same, over(0), **again).results()) == 3


@pytest.mark.parametrize(
    "wrong",
    [{"batch_size": 1.5}, {"chunk_size": "4"}, {"chunk_bytes": 0}, {"max_attempts": 0}, {"backoff": -1}, {"name": ""}],
    ids=str,
)
def test_options_that_make_no_sense_are_refused_before_a_chunk_is_drawn(
    coordinator: StreamCoordinator, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        coordinator.lease(dataset(), **wrong)


@pytest.mark.parametrize("wrong", [{"ttl": float("inf")}, {"ttl": "3"}, {"heartbeat": float("nan")}], ids=str)
def test_times_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        StreamCoordinator(hash_store(), 1, **wrong)


def test_a_folder_of_another_job_is_refused(coordinator: StreamCoordinator, tmp_path: Path) -> None:
    lease(coordinator, folder=tmp_path)
    with worker(hash_store()) as other, pytest.raises(CoordinationError, match="chunk_size"):
        lease(other, folder=tmp_path, chunk_size=SIZE + 1)


@pytest.mark.parametrize("same_store", [True, False], ids=["on the same store", "on a new store"])
def test_a_folder_of_a_job_of_another_name_is_refused(
    coordinator: StreamCoordinator, tmp_path: Path, same_store: bool
) -> None:
    lease(coordinator, folder=tmp_path, name="captions").process(lambda chunk: "a caption")
    with worker(hash_store()) as other, pytest.raises(CoordinationError, match="another name"):
        lease(coordinator if same_store else other, folder=tmp_path, name="scores")
    assert len(Ledger(tmp_path, owner="x").read()) == CHUNKS


def test_a_saved_state_carries_the_results_over_any_number_of_stores() -> None:
    state: dict[str, Any] | None = None
    for generation in (1, 2, 3):
        with worker(hash_store()) as coordinator:
            reader = lease(coordinator, state=state)
            commit_some(reader, 2)
            state = json.loads(json.dumps(reader.state_dict()))
            assert state is not None
            assert state["generation"] == generation
    with worker(hash_store()) as coordinator:
        reader = lease(coordinator, state=state)
        assert reader.process(lambda chunk: None) == CHUNKS - 6
        assert [done.chunk for done in reader.results()] == list(range(CHUNKS))


class Generations(RuleBasedStateMachine):
    """Workers of several generations record commits in one folder, in any order: each chunk counts once."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.ledgers: list[tuple[int, Ledger, set[int]]] = []
        self.accepted: dict[int, int] = {}
        self.begin()

    @rule()
    def begin(self) -> None:
        ledger = Ledger(self.folder, owner=f"worker{len(self.ledgers)}", interval=1e9)
        generation, mark, *_ = ledger.begin()
        finished = {chunk for start, stop in ledger.enter(generation, mark) for chunk in range(start, stop)}
        assert finished == set(self.accepted)
        self.ledgers.append((generation, ledger, finished))

    @rule(which=st.integers(0, 5), chunk=st.integers(0, 20))
    def commit(self, which: int, chunk: int) -> None:
        generation, ledger, finished = self.ledgers[which % len(self.ledgers)]
        if chunk in finished:
            return  # its store hands out nothing that had ended, or ended there
        finished.add(chunk)
        try:
            ledger.record(Done(chunk, ledger._owner, generation))
        except SupersededError:
            assert generation < self.ledgers[-1][0]
            return
        assert generation == self.ledgers[-1][0]
        assert chunk not in self.accepted
        self.accepted[chunk] = generation

    @rule(which=st.integers(0, 5))
    def flush(self, which: int) -> None:
        self.ledgers[which % len(self.ledgers)][1].flush()

    @invariant()
    def what_is_kept_is_what_was_accepted(self) -> None:
        assert {chunk: end.token for chunk, end in self.ledgers[-1][1].read().items()} == self.accepted

    def teardown(self) -> None:
        for _, ledger, _ in self.ledgers:
            ledger.close()
        self.temporary.cleanup()


TestGenerations = Generations.TestCase
TestGenerations.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


def test_others_wait_for_a_worker_that_begins_the_job_for_as_long_as_it_shows_signs_of_life(tmp_path: Path) -> None:
    store = hash_store()
    with worker(store, ttl=0.3, heartbeat=0.05) as slow, worker(store, 1, ttl=0.3, heartbeat=0.05) as quick:
        reading, read_back = threading.Event(), Ledger._read
        beats = slow._presence.record(0).sequence

        def read(ledger: Ledger) -> Any:
            # As a folder of a million results would: for longer than a TTL.
            if not reading.is_set():
                reading.set()
                wait_until(lambda: slow._presence.record(0).sequence > beats + 20)
            return read_back(ledger)

        with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ledger, "_read", read)
            first = pool.submit(lease, slow, folder=tmp_path)
            assert reading.wait(30)
            second = pool.submit(lease, quick, folder=tmp_path)
            assert (first.result(60).generation, second.result(60).generation) == (1, 1)


def test_another_worker_begins_the_job_where_the_one_that_did_has_died(tmp_path: Path) -> None:
    store = hash_store()
    with worker(store, ttl=0.3, heartbeat=0.05) as dead:
        name = f"0/{dead._presence.record(0).owner}"
    store.set("holdfast/lease/job/job", json.dumps({"starting": name}))
    with worker(store, 0, ttl=0.3, heartbeat=0.05) as again:  # under the same rank: its signs of life are not those
        assert lease(again, folder=tmp_path).process(lambda chunk: "") == CHUNKS


# --- outputs -------------------------------------------------------------------------------------------------------


def test_each_committed_output_is_there_once_under_its_real_name(
    coordinator: StreamCoordinator, tmp_path: Path
) -> None:
    sink = FolderSink(tmp_path, suffix=".json")
    reader = lease(coordinator, sink=sink)
    for chunk in reader:
        with chunk.open("w") as file:
            json.dump(chunk.positions.tolist(), file)
        chunk.commit()
    files = sorted(tmp_path.glob("part-*.json"))
    assert [json.loads(file.read_text())[0] for file in files] == [SIZE * chunk for chunk in range(CHUNKS)]
    assert [done.file for done in reader.results()] == [file.name for file in files]
    assert not list((tmp_path / ".tmp").iterdir())


def test_an_attempt_that_fails_leaves_no_output(coordinator: StreamCoordinator, tmp_path: Path) -> None:
    failed: list[int] = []

    def work(chunk: LeasedChunk) -> str:
        chunk.open().write(b"x")
        if chunk.chunk == 3 and not failed:
            failed.append(chunk.token)
            raise ValueError("once")
        return ""

    assert lease(coordinator, sink=FolderSink(tmp_path)).process(work) == CHUNKS
    assert len(list(tmp_path.glob("part-*"))) == CHUNKS
    assert not list((tmp_path / ".tmp").iterdir())


def test_outputs_go_to_any_place_that_fsspec_knows(coordinator: StreamCoordinator) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    reader = lease(coordinator, sink=FolderSink("memory://bucket/outputs"))

    def work(chunk: LeasedChunk) -> str:
        with chunk.open() as file:
            file.write(b"x")
        return ""

    assert reader.process(work) == CHUNKS
    names = [Path(name).name for name in memory.ls("/bucket/outputs", detail=False)]
    assert sorted(name for name in names if name.startswith("part-")) == [done.file for done in reader.results()]
    memory.rm("/bucket", recursive=True)


def test_a_chunk_without_a_sink_says_what_to_do(coordinator: StreamCoordinator) -> None:
    chunk = next(iterator := iter(lease(coordinator)))
    with pytest.raises(ConfigError, match="FolderSink"):
        chunk.open()
    iterator.close()  # type: ignore[attr-defined]


# --- bad chunks ----------------------------------------------------------------------------------------------------


def poison(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["value"] == 5 * SIZE:
        raise ValueError("poison")
    return sample


@pytest.mark.parametrize("where", ["the transform", "the work"])
def test_a_poison_chunk_is_listed_with_its_traceback_and_the_job_finishes(where: str, tmp_path: Path) -> None:
    store = hash_store()

    def work(chunk: LeasedChunk) -> str:
        if where == "the work" and chunk.chunk == 5:
            raise ValueError("poison")
        return ""

    data = dataset(poison if where == "the transform" else None)
    with worker(store) as first, worker(store, 1) as second:
        readers = [
            lease(each, data, folder=tmp_path, max_attempts=3, on_error="skip", chunk_seconds=0.0)
            for each in (first, second)
        ]
        assert sum(reader.process(work) for reader in readers) == CHUNKS - 1  # neither of them died
        (letter,) = readers[0].dead_letters()
        assert (letter.chunk, letter.attempts) == (5, 3)
        assert "Traceback" in letter.error
        assert "poison" in letter.error
        assert len(readers[0].results()) == CHUNKS - 1


@pytest.mark.parametrize(
    "payload",
    ["x" * 1_000_001, 5, b"x", 0, False, b"", [], np.zeros(2), np.zeros(0)],
    ids=["too long", "a number", "bytes", "zero", "false", "no bytes", "no list", "an array", "an empty array"],
)
def test_a_payload_that_cannot_be_kept_is_its_chunks_failure_and_kills_no_worker(
    coordinator: StreamCoordinator, payload: Any
) -> None:
    reader = lease(coordinator, on_error="skip")
    assert reader.process(lambda chunk: payload if chunk.chunk == 3 else "") == CHUNKS - 1
    (letter,) = reader.dead_letters()
    assert (letter.chunk, letter.attempts, "a payload must be text" in letter.error) == (3, 1, True)


def test_work_whose_first_payload_cannot_be_kept_ends_the_worker_before_all_is_done_in_vain(
    coordinator: StreamCoordinator,
) -> None:
    called: list[int] = []

    def work(chunk: LeasedChunk) -> Any:
        called.append(chunk.chunk)
        return 5

    with pytest.raises(ConfigError, match="a payload must be text"):
        lease(coordinator).process(work)
    assert called == [0]
    assert lease(coordinator).process(lambda chunk: "5") == CHUNKS  # mended: nothing was given up


def test_an_output_that_cannot_be_written_is_its_chunks_failure_and_kills_no_worker(
    coordinator: StreamCoordinator, tmp_path: Path
) -> None:
    reader = lease(coordinator, sink=FolderSink(tmp_path), max_attempts=2, on_error="skip")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def work(chunk: LeasedChunk) -> str:
        chunk.open().write(b"x" * (100_000 if chunk.chunk == 3 else 10))  # left open: written, or not, by the commit
        return ""

    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        assert reader.process(work) == CHUNKS - 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [letter.chunk for letter in reader.dead_letters()] == [3]
    assert len(list(tmp_path.glob("part-*"))) == CHUNKS - 1
    assert not list((tmp_path / ".tmp").iterdir())


def test_by_default_a_job_with_dead_letters_ends_with_an_error_after_all_else_is_done(
    coordinator: StreamCoordinator,
) -> None:
    reader = lease(coordinator, dataset(poison), max_attempts=2)
    with pytest.raises(DeadLetterError, match=r"1 of 10 chunks were given up.*poison"):
        reader.process(lambda chunk: "")
    assert len(reader.results()) == CHUNKS - 1


@pytest.mark.parametrize("kept", ["folder", "state"])
def test_a_job_with_dead_letters_ends_with_the_error_on_every_later_store_too(kept: str, tmp_path: Path) -> None:
    again: dict[str, Any] = {"folder": tmp_path} if kept == "folder" else {}
    with worker(hash_store()) as coordinator:
        iterator = iter(reader := lease(coordinator, max_attempts=1, **again))
        next(iterator).fail("poison")
        iterator.close()  # type: ignore[attr-defined]
        state = reader.state_dict()
    for committed in (CHUNKS - 1, 0, 0):  # the rest on a new store, then the same command twice more
        again = {"folder": tmp_path} if kept == "folder" else {"state": state}
        with worker(hash_store()) as coordinator:
            reader = lease(coordinator, on_error="raise", **again)
            with pytest.raises(DeadLetterError, match="1 of 10 chunks were given up"):
                reader.process(lambda chunk: "")
            assert len(reader.results()) == CHUNKS - 1
            (job,) = Survey(coordinator._client).look().jobs
            assert (job.dead, int(coordinator._client.get(f"lease/job/{reader.generation}/committed") or 0)) == (
                1,
                committed,
            )
            state = reader.state_dict()
    with worker(hash_store()) as coordinator:
        assert lease(coordinator, on_error="skip", **again).process(lambda chunk: "") == 0


def test_a_chunk_that_fails_now_and_then_is_tried_until_it_succeeds(coordinator: StreamCoordinator) -> None:
    failures: dict[int, int] = {}

    def work(chunk: LeasedChunk) -> str:
        failures[chunk.chunk] = failures.get(chunk.chunk, 0) + 1
        if failures[chunk.chunk] < 3:
            raise OSError("not yet")
        return ""

    assert lease(coordinator, max_attempts=3).process(work) == CHUNKS
    assert set(failures.values()) == {3}


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        run(["job", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code, *capsys.readouterr()


def test_dead_letters_are_shown_and_tried_again_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = hash_store()
    with worker(store) as coordinator:
        lease(coordinator, dataset(poison), folder=tmp_path, max_attempts=1, on_error="skip").process(lambda chunk: "")
    code, shown, _ = command(capsys, "show", str(tmp_path), "--tracebacks")
    assert (code, "9 of 10" in shown, "Traceback" in shown) == (0, True, True)
    assert json.loads(command(capsys, "retry", str(tmp_path), "--json")[1]) == {"chunks": [5]}
    with worker(store) as coordinator:  # the same store: the job goes on there, in its next generation
        reader = lease(coordinator, folder=tmp_path)
        assert reader.process(lambda chunk: "mended") == 1
        assert (reader.generation, reader.dead_letters()) == (2, [])
    results = json.loads(command(capsys, "results", str(tmp_path), "--json")[1])["results"]
    assert [(entry["chunk"], entry["payload"]) for entry in results] == [
        (chunk, "mended" if chunk == 5 else "") for chunk in range(CHUNKS)
    ]
    assert "nothing" in command(capsys, "retry", str(tmp_path))[1]


def test_text_that_cannot_be_printed_is_shown_escaped(
    tmp_path: Path, capfdbinary: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "holdfast")  # a parallel run of the tests cannot send such text on

    def half(chunk: LeasedChunk) -> str:
        if chunk.chunk:
            return "half \ud800"
        raise ValueError("boom \ud800")

    with worker(hash_store()) as coordinator:
        lease(coordinator, folder=tmp_path, max_attempts=1, on_error="skip").process(half)
    for arguments, expected in ((["show", "--tracebacks"], rb"boom \\ud800"), (["results"], rb"half \\ud800")):
        with pytest.raises(SystemExit) as caught:
            run(["job", arguments[0], str(tmp_path), *arguments[1:]])
        assert caught.value.code == 0
        assert re.search(expected, capfdbinary.readouterr().out)


def test_a_folder_that_is_no_jobs_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = command(capsys, "show", str(tmp_path))
    assert (code, errors.count("\n")) == (2, 1)


def test_work_that_holds_the_interpreters_lock_beyond_the_ttl_ends_and_is_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with StreamCoordinator(hash_store(), 1, heartbeat=0.05, ttl=0.2) as coordinator:
        coordinator.register_worker(0)
        reader = coordinator.lease(dataset(), chunk_size=CHUNKS * SIZE)

        def work(chunk: LeasedChunk) -> str:
            ctypes.PyDLL(None).usleep(500_000)  # two and a half TTLs in which no other thread runs
            return "done"

        assert reader.process(work) == 1
        assert "raise ttl" in caplog.text


# --- sizes ---------------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 10**12),
    st.integers(1, 512),
    st.integers(1, 2000),
    st.floats(1, 1e8),
    st.sampled_from([1 << 20, 1 << 25]),
)
def test_a_default_chunk_is_bounded_by_bytes_and_their_number_too_where_bytes_allow_it(
    positions: int, batch_size: int, workers: int, size: float, max_bytes: int
) -> None:
    chunk = default_chunk_size(
        positions=positions, batch_size=batch_size, workers=workers, bytes_per_sample=size, max_bytes=max_bytes
    )
    assert chunk % batch_size == 0
    assert chunk == batch_size or chunk * size <= max_bytes
    if positions / MAX_CHUNKS * size + batch_size * size <= max_bytes:
        assert positions / chunk <= MAX_CHUNKS


def test_a_billion_positions_make_a_million_chunks_and_images_few_per_chunk() -> None:
    options: dict[str, Any] = {"batch_size": 1, "workers": 1000, "max_bytes": MAX_CHUNK_BYTES}
    assert default_chunk_size(positions=10**9, bytes_per_sample=8, **options) == 1000
    assert default_chunk_size(positions=10**6, bytes_per_sample=3 * 600 * 600 * 4, **options) == 7


def test_workers_that_name_no_chunk_size_take_the_jobs(coordinator: StreamCoordinator) -> None:
    lease(coordinator, chunk_size=3)
    assert lease(coordinator, chunk_size=None).job.chunk_size == 3


def test_asking_for_results_again_reads_only_what_may_have_changed(coordinator: StreamCoordinator) -> None:
    reader = lease(coordinator)
    reader.process(lambda chunk: "")
    reader.results()
    before = reader._outcome.client.operations
    assert len(reader.results()) == CHUNKS
    assert reader._outcome.client.operations == before + 1  # the count of chunks drawn


def test_results_and_states_need_no_lock_that_renewal_holds(coordinator: StreamCoordinator) -> None:
    reader = lease(coordinator)
    with reader._lock:  # as the heartbeat holds it while it renews: another thread could not take it
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.extend((reader.results(), reader.state_dict())))
        asking.start()
        asking.join(30)
        assert len(found) == 2
