"""Every second falls into one bucket, and the buckets sum to the wall clock, over restarts too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.run.job import make_job

from holdfast.run import RunLog, RunOptions

PROGRAM = """
import sys, time
from pathlib import Path
from tests.run.job import make_job
from holdfast.run import RunOptions
job = make_job()
options = RunOptions(save_every=5, stall_after=0.4)
run = job.run(Path(sys.argv[1]), steps=int(sys.argv[2]), options=options)
for batch in run:
    if run.step_number == 3 and sys.argv[3] == "stall":
        time.sleep(0.6)
    run.step(loss=job.step(batch))
    if run.step_number == int(sys.argv[4]):
        import os
        os._exit(9)
run.close()
"""


def test_the_buckets_sum_to_the_wall_clock_over_a_crash_and_a_pause(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    for target, fault, crash in ((30, "stall", 8), (30, "", -1)):
        arguments = [str(tmp_path / "run"), str(target), fault, str(crash)]
        subprocess.run([sys.executable, "-c", PROGRAM, *arguments], env=environment, check=False)
    log = RunLog(tmp_path / "run")
    goodput = log.goodput()
    header = log.header(attempt=1)
    ended = log.header(attempt=2)["monotonic"] + list(log.records())[-1]["at"]
    wall = ended - header["monotonic"]
    assert goodput.total == pytest.approx(wall, rel=1e-3)
    assert header["monotonic"] >= began - 0.02  # the clock of process starts has ticks of 10 ms
    assert goodput.seconds["stalled"] == pytest.approx(0.6, abs=0.25)
    assert goodput.seconds["redone"] > 0
    assert goodput.seconds["down"] > 0
    assert len(log.events("stall")) == 1
    assert json.dumps(goodput.seconds)


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
    run = job.run(tmp_path / "run", options=RunOptions(save_every=10_000, time_limit=elapsed + 3.0))
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
