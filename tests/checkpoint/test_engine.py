"""The threads that run a load: everything once, the first error ends it, nothing outlives it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.checkpoint.support import nothing_left_behind

from holdfast.checkpoint.budget import MemoryBudget
from holdfast.checkpoint.engine import Engine


@contextmanager
def running(workers: int) -> Iterator[Engine]:
    engine = Engine(workers, MemoryBudget(100))
    with nothing_left_behind():
        try:
            yield engine
        finally:
            engine.close()


def posting(engine: Engine, value: int) -> Callable[[], None]:
    return lambda: engine.post(value)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_every_job_runs_once_and_its_event_arrives(workers: int) -> None:
    with running(workers) as engine:
        engine.submit(*(posting(engine, number) for number in range(500)))
        assert sorted(engine.events()) == list(range(500))


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_jobs_and_the_consumer_may_submit_more(workers: int) -> None:
    with running(workers) as engine:
        engine.submit(lambda: engine.submit(posting(engine, 0), first=True))
        seen = []
        for value in engine.events():
            seen.append(value)
            if value < 5:
                engine.submit(posting(engine, value + 1))
        assert seen == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("workers", [0, 1])
def test_jobs_run_in_order_and_first_jumps_the_queue(workers: int) -> None:
    with running(workers) as engine:
        engine.submit(posting(engine, 1), posting(engine, 2))
        engine.submit(posting(engine, -1), posting(engine, 0), first=True)
        assert list(engine.events()) == [-1, 0, 1, 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_first_error_is_raised_and_queued_jobs_never_run(workers: int) -> None:
    ran: list[int] = []

    def fail() -> None:
        raise ValueError("first")

    with running(workers) as engine:
        engine.submit(lambda: ran.append(1), fail, lambda: ran.append(2), fail)
        with pytest.raises(ValueError, match="first"):
            list(engine.events())
    assert ran == [1]


def test_closing_waits_for_what_runs() -> None:
    started, release, finished = threading.Event(), threading.Event(), threading.Event()

    def job() -> None:
        started.set()
        release.wait(10)
        finished.set()

    def fail() -> None:
        started.wait(10)
        raise ValueError("other")

    with running(2) as engine:
        engine.submit(job, fail)
        with pytest.raises(ValueError, match="other"):
            list(engine.events())
        assert engine.cancelled
        release.set()
    assert finished.is_set()


@pytest.mark.parametrize("moment", [0, 1])
def test_an_engine_that_is_interrupted_while_its_threads_start_closes(
    monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    start, started = threading.Thread.start, iter(range(9))

    def interrupted(thread: threading.Thread) -> None:
        if next(started) == moment:
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with running(3) as engine:
        engine.submit(posting(engine, 1))
        with pytest.raises(KeyboardInterrupt):
            list(engine.events())


def test_an_engine_that_never_started_closes() -> None:
    with running(3) as engine:
        engine.submit(posting(engine, 1))
