"""Every second falls into one bucket, and the buckets sum to the wall clock, over restarts too."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.run.job import make_job

from holdfast.run import RunLog, RunOptions
from holdfast.run.step_record import StepRecord


def test_waiting_for_data_and_evaluating_have_their_own_buckets(tmp_path: Path) -> None:
    job = make_job()

    class Slow:
        """Lets the loop wait for its fourth batch."""

        def __iter__(self):  # type: ignore[no-untyped-def]
            for number, batch in enumerate(job.loader):
                if number == 3:
                    time.sleep(0.2)
                yield batch

        state_dict = job.loader.state_dict
        load_state_dict = job.loader.load_state_dict

    from holdfast.run import Run

    with Run(tmp_path / "run", model=job.model, optimizer=job.optimizer, loader=Slow(), steps=6) as run:
        for batch in run:
            run.step(loss=job.step(batch))
            if run.step_number == 2:
                with run.evaluating():
                    time.sleep(0.3)
    seconds = RunLog(tmp_path / "run").goodput().seconds
    assert seconds["data"] >= 0.2
    assert seconds["evaluation"] >= 0.3
    assert seconds["stalled"] == 0


def test_a_step_whose_numbers_arrive_late_keeps_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skew = 0.0
    init = StepRecord.__init__

    def late(self: StepRecord, *arguments: Any) -> None:
        init(self, *arguments)
        self.is_deferred = True

    monkeypatch.setattr("holdfast.run.buckets.monotonic", lambda: time.monotonic() + skew)
    monkeypatch.setattr(StepRecord, "__init__", late)
    monkeypatch.setattr(StepRecord, "is_ready", False)  # as on a device that is busy for two steps
    job = make_job()
    with job.run(tmp_path / "run", steps=8) as run:
        for batch in run:
            loss = job.step(batch)
            if run.step_number == 3:
                skew = 20.0
            run.step(loss=loss)
    times = {record["step"]: record["step_time"] for record in RunLog(tmp_path / "run").steps()}
    assert [step for step, seconds in times.items() if seconds >= 20.0] == [3]


def test_a_time_limit_saves_before_the_end_of_time(tmp_path: Path) -> None:
    job = make_job()
    elapsed = time.clock_gettime(time.CLOCK_BOOTTIME) - _process_start()
    run = job.run(tmp_path / "run", options=RunOptions(save_every=10_000, time_limit=elapsed + 1.0))
    for batch in run:
        run.step(loss=job.step(batch))
    run.close()
    assert run.ended == "time limit"
    log = RunLog(tmp_path / "run")
    assert log.events("checkpoint")[-1]["reason"] == "time limit"
    assert log.events("checkpoint")[-1]["step"] == log.steps()[-1]["step"] + 1


def _process_start() -> float:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
