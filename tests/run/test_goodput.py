"""Every second falls into one bucket, and the buckets sum to the wall clock, over restarts too."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.run.job import make_job

from holdfast.run import RunLog, RunOptions


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
