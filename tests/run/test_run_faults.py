"""What befalls a run from outside, each with its expected outcome: kills, stalls, a second process, the clock."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run.job import QUICK, make_job, train
from tests.run.lives import kill_at, live

import holdfast.checkpoint
import holdfast.run.attempt
import holdfast.run.checkpoints
import holdfast.run.compact
import holdfast.run.recorder
import holdfast.run.saving
import holdfast.run.snapshot
from holdfast.errors import RunLockedError, RunWriteError
from holdfast.run import RunLog, RunOptions
from holdfast.run.layout import RunFolder
from holdfast.run.watchdog import EXIT_STALLED, Watchdog

KILLED = -signal.SIGKILL
COMPACTING = RunOptions(save_every=5, stats_every=None, handle_signals=False, compact_bytes=0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The parameters of a run of 20 steps that nothing disturbs."""
    return trained(tmp_path_factory.mktemp("undisturbed") / "run")


def trained(folder: Path, *, steps: int = 20, options: RunOptions = QUICK) -> int:
    job = make_job()
    with job.run(folder, steps=steps, options=options) as run:
        train(job, run)
    job.loader.close()
    return job.hash


@pytest.mark.parametrize(
    ("owner", "name", "call", "after"),
    [
        (holdfast.run.compact, "read_lines", 1, True),  # the original is read
        (os, "replace", 1, True),  # the new file is written, not checked
        (holdfast.run.compact, "sync", 1, False),  # checked, not durable
        (os, "replace", 2, False),  # durable, not in its place
        (os, "replace", 2, True),  # in its place, the original still there
    ],
)
def test_a_kill_while_the_log_is_compacted_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: int, owner: Any, name: str, call: int, after: bool
) -> None:
    folder = tmp_path / "run"
    trained(folder, steps=10, options=COMPACTING)
    before = list(RunLog(folder).records())

    def compacts() -> None:
        file = RunLog(folder).folder.log_files()[0]
        kill_at(monkeypatch, owner, name, call=call, after=after)
        holdfast.run.compact.compact(file)

    assert live(compacts) == KILLED
    assert list(RunLog(folder).records()) == before
    assert trained(folder, options=COMPACTING) == undisturbed
    log = RunLog(folder)
    assert log.verify() == []
    assert [record["step"] for record in log.steps()] == list(range(20))
    assert not list(folder.glob("log/.*"))


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (holdfast.run.attempt, "Recorder", True),  # a log with a header and nothing else
        (holdfast.run.snapshot, "load", False),
        (holdfast.run.snapshot, "load", True),
        (holdfast.run.snapshot, "restore_optimizer", True),
        (holdfast.run.snapshot, "restore_generators", True),
    ],
)
def test_a_kill_while_a_checkpoint_is_restored_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: int, owner: Any, name: str, after: bool
) -> None:
    folder = tmp_path / "run"
    trained(folder, steps=10)
    with monkeypatch.context() as patched:
        kill_at(patched, owner, name, after=after)
        assert live(lambda: trained(folder)) == KILLED
    assert trained(folder) == undisturbed
    assert RunLog(folder).verify() == []


def test_a_second_process_in_the_same_folder_is_refused_and_the_first_goes_on(tmp_path: Path, undisturbed: int) -> None:
    folder = tmp_path / "run"
    job = make_job()
    run = job.run(folder, steps=20)

    def intrudes() -> None:
        with pytest.raises(RunLockedError, match="another process") as caught:
            make_job().run(folder, steps=20).resume()
        assert caught.value.where["pid"] == os.getppid()

    def in_the_middle(_: Any) -> None:
        if run.step_number == 7:
            assert live(intrudes) == 0

    train(job, run, on_batch=in_the_middle)
    run.close()
    assert job.hash == undisturbed
    assert RunLog(folder).attempts == [1]


def test_a_stall_ends_the_process_with_its_own_exit_code_and_the_next_start_continues(
    tmp_path: Path, undisturbed: int
) -> None:
    folder = tmp_path / "run"
    options = RunOptions(save_every=5, stats_every=5, stall_after=0.2, stall_timeout=0.4, handle_signals=False)

    def stalls() -> None:
        job = make_job()
        run = job.run(folder, steps=20, options=options)

        def hang(_: Any) -> None:
            if run.step_number == 8:
                threading.Event().wait()

        train(job, run, on_batch=hang)

    assert live(stalls) == EXIT_STALLED
    log = RunLog(folder)
    (stall,) = log.events("stall")
    assert (stall["step"], stall["phase"], stall["culprits"]) == (8, "step", [0])
    assert "in hang" in (folder / "stalls" / stall["stacks"]).read_text()
    assert [record["step"] for record in log.steps()] == list(range(8))
    assert log.goodput().seconds["stalled"] >= 0.2
    assert trained(folder) == undisturbed


def test_a_watchdog_ends_the_process_even_where_the_log_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.run.watchdog.MAX_TELLING_SECONDS", 0.2)

    def stalls() -> None:
        job = make_job()
        options = RunOptions(stall_after=0.2, stall_timeout=0.4, handle_signals=False)
        run = job.run(tmp_path / "run", options=options)
        for _ in run:
            loop: Any = run._loop
            with loop.attempt.recorder._lock:  # as held by a write to a disk that does not answer
                threading.Event().wait()

    assert live(stalls) == EXIT_STALLED


def test_a_rank_that_was_never_heard_of_is_the_one_that_holds_up_the_run(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    heard = threading.Event()

    def note(stall: dict[str, Any]) -> None:
        told.append(stall)
        heard.set()

    folder = RunFolder(tmp_path)
    watchdog = Watchdog(folder, rank=0, world=3, stall_after=0.5, stall_timeout=None, on_stall=note)
    other = Watchdog(folder, rank=2, world=3, stall_after=60.0, stall_timeout=None, on_stall=note)
    beat = json.loads((folder.progress / "rank-00002.json").read_text())
    watchdog.place = ("step", 4)
    while not heard.wait(0.05):
        beat["beat"] += 1  # rank 2 beats, in the same step
        (folder.progress / "rank-00002.json").write_text(json.dumps({**beat, "step": 4, "phase": "step"}))
    watchdog.stop()
    other.stop()
    assert (told[0]["silent"], told[0]["culprits"]) == ([1], [1])


def test_checkpoints_are_taken_by_the_clock_where_the_steps_do_not_say_when(tmp_path: Path) -> None:
    for minutes, expected in ((1e-9, list(range(7))), (60.0, [0, 6])):
        folder = tmp_path / str(minutes)
        trained(folder, steps=6, options=RunOptions(save_every=None, save_minutes=minutes, handle_signals=False))
        assert [event["step"] for event in RunLog(folder).events("checkpoint")] == expected


def test_a_save_of_the_last_step_that_fails_under_way_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a rank has noticed the failure by then must not decide what it does: all ranks save together."""
    save, refused = holdfast.checkpoint.async_save, [10]
    (tmp_path / "file").write_bytes(b"")

    def fails_once(state: Any, path: Path, *, step: int, **more: Any) -> Any:
        if step in refused:
            refused.remove(step)
            path = tmp_path / "file" / path.name
        return save(state, path, step=step, **more)

    monkeypatch.setattr(holdfast.run.checkpoints, "async_save", fails_once)
    monkeypatch.setattr(holdfast.run.saving.Saving, "poll", lambda saving: None)  # it takes longer than the last step
    job = make_job()
    with pytest.warns(RuntimeWarning, match="no checkpoint of step 10: "):
        train(job, job.run(tmp_path / "run", steps=10))
    job.loader.close()
    log = RunLog(tmp_path / "run")
    assert [event["step"] for event in log.events("save_failed")] == [10]
    assert [event["step"] for event in log.events("checkpoint")] == [0, 5, 10]


def test_the_buckets_sum_to_the_wall_clock_over_a_crash_and_a_stall(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = RunOptions(save_every=5, stall_after=0.4, handle_signals=False)
    began = time.monotonic()

    def attempts(stall: int, crash: int) -> None:
        job = make_job()
        run = job.run(folder, steps=30, options=options)
        for batch in run:
            if run.step_number == stall:
                threading.Event().wait(0.6)
            run.step(loss=job.step(batch))
            if run.step_number == crash:
                os._exit(9)
        run.close()

    for stall, crash in ((3, 8), (22, 24), (-1, 26), (-1, -1)):
        assert live(partial(attempts, stall, crash)) == (0 if crash < 0 else 9)
    log = RunLog(folder)
    goodput = log.goodput()
    first, last = log.header(attempt=1), log.header(attempt=4)
    wall = last["monotonic"] + list(log.records())[-1]["at"] - first["monotonic"]
    assert goodput.total == pytest.approx(wall, rel=1e-3)
    assert goodput.attempts == 4
    assert first["monotonic"] >= began - 0.02  # the clock of process starts has ticks of 10 ms
    assert wall <= time.monotonic() - began + 0.02
    assert goodput.seconds["stalled"] >= 0.8  # two of 0.6 s, but for what those steps usually take
    assert goodput.seconds["redone"] > 0
    assert goodput.seconds["down"] > 0
    assert {event["step"] for event in log.events("stall")} >= {3, 22}  # a busy machine may stall by itself


@pytest.mark.parametrize("killed", [False, True])
def test_attempts_without_a_record_of_their_own_count_as_down(tmp_path: Path, killed: bool) -> None:
    """A start that is refused, or killed before its first record, leaves nothing but a header."""
    folder = tmp_path / "run"

    def start(steps: int, *, fails: bool = False) -> None:
        job = make_job()
        if fails and killed:
            holdfast.run.attempt._restore = lambda *_: os._exit(9)
        optimizer = torch.optim.SGD(job.model.parameters(), lr=0.1) if fails else job.optimizer
        with job.run(folder, steps=steps, optimizer=optimizer) as run:
            for batch in run:
                run.step(loss=job.step(batch))

    assert live(partial(start, 4)) == 0
    for _ in range(2):
        threading.Event().wait(0.3)
        assert live(partial(start, 8, fails=True)) != 0
    assert live(partial(start, 8)) == 0
    log = RunLog(folder)
    goodput = log.goodput()
    wall = log.header()["monotonic"] + list(log.records())[-1]["at"] - log.header(attempt=1)["monotonic"]
    assert goodput.attempts == 4
    assert goodput.total == pytest.approx(wall, rel=1e-3)
    assert goodput.seconds["down"] >= 0.6


@pytest.mark.parametrize("how", ["renamed", "deleted"])
def test_a_folder_that_is_moved_or_deleted_meanwhile_is_no_place_to_save(tmp_path: Path, how: str) -> None:
    job = make_job()
    run = job.run(
        tmp_path / "run", options=RunOptions(save_every=2, save_in_background=False, handle_signals=False), steps=20
    )

    def move(_: Any) -> None:
        if run.step_number == 3:
            (tmp_path / "run").rename(tmp_path / "elsewhere")
            if how == "deleted":
                shutil.rmtree(tmp_path / "elsewhere")

    with (
        pytest.warns(RuntimeWarning, match="folder was moved or deleted"),
        pytest.raises(RunWriteError, match="folder was moved or deleted"),
    ):
        train(job, run, on_batch=move)
    run.close()
    assert not (tmp_path / "run" / "checkpoints").exists()
    if how == "renamed":
        again = make_job()
        train(again, again.run(tmp_path / "elsewhere", steps=20))
        whole = make_job()
        train(whole, whole.run(tmp_path / "whole", steps=20))
        assert again.hash == whole.hash
        again.loader.close()
        whole.loader.close()
    job.loader.close()


def test_a_run_that_is_let_go_and_cannot_be_closed_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job()
    run = job.run(tmp_path / "run", options=RunOptions(save_in_background=False, handle_signals=False))
    for batch in run:
        run.step(loss=job.step(batch))
        break
    assert run._finalizer is not None

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on the device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(RuntimeWarning, match="the run was not closed properly"):
        run._finalizer()  # as when it is no longer referenced
    job.loader.close()
