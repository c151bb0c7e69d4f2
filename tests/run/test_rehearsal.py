"""Recorded steps can be made again with the same bits, and the run does not notice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.run.job import QUICK, Job, make_job, train

from holdfast.errors import ConfigError, RunError
from holdfast.run import Run, RunLog
from holdfast.run.generators import generator_states


def trained(folder: Path, steps: int = 18) -> tuple[Job, Run]:
    job = make_job()
    run = job.run(folder, train_step=job.step, options=QUICK)
    run.train(steps=steps)
    return job, run


def state_of(job: Job) -> str:
    optimizer = job.optimizer.state_dict()
    states: Any = [job.hash, optimizer, job.scheduler.state_dict(), job.loader.state_dict()["step"], generator_states()]
    return json.dumps(states, default=lambda value: value.tolist(), sort_keys=True)


def files_of(folder: Path) -> dict[str, bytes]:
    parts = [folder / "log", folder / "checkpoints"]
    return {str(path): path.read_bytes() for part in parts for path in part.rglob("*") if path.is_file()}


def test_rehearsed_steps_have_the_recorded_bits_and_leave_the_run_untouched(tmp_path: Path) -> None:
    job, run = trained(tmp_path / "run")
    run.close()
    before, files = state_of(job), files_of(tmp_path / "run")
    recorded = {record["step"]: record for record in RunLog(tmp_path / "run").steps()}
    with run.rehearsing(13) as rehearsal:
        assert rehearsal.step == 10
        made = rehearsal.run_to(17)
        rehearsal.rewind()
        again = rehearsal.run_to(17)
    assert made == again
    assert [record["step"] for record in made] == list(range(10, 17))
    for record in made:
        for name in ("loss_bits", "grad_norm_bits", "lr", "batches"):
            assert record[name] == recorded[record["step"]][name]
    assert state_of(job) == before
    assert files_of(tmp_path / "run") == files


def test_a_rehearsal_in_the_middle_of_a_run_changes_nothing_about_it(tmp_path: Path) -> None:
    undisturbed = trained(tmp_path / "a", steps=20)[0].hash
    job = make_job()
    run = job.run(tmp_path / "b", steps=20, train_step=job.step)
    for batch in run:
        run.step(loss=job.step(batch))
        if run.step_number == 12:
            with run.rehearsing(8) as rehearsal:
                rehearsal.run_to(11)
    run.close()
    assert job.hash == undisturbed
    assert [r["loss_bits"] for r in RunLog(tmp_path / "a").steps()] == [
        r["loss_bits"] for r in RunLog(tmp_path / "b").steps()
    ]


def test_a_counterfactual_changes_the_steps_and_still_not_the_run(tmp_path: Path) -> None:
    job, run = trained(tmp_path / "run")
    before = state_of(job)
    with run.rehearsing(10) as rehearsal:
        rehearsal.components.loader.skip(steps=[11])
        made = rehearsal.run_to(13)
    run.close()
    recorded = [record["loss_bits"] for record in RunLog(tmp_path / "run").steps()]
    assert made[0]["loss_bits"] == recorded[10]
    assert made[1]["loss_bits"] != recorded[11]
    assert state_of(job) == before


def test_an_error_in_a_rehearsed_step_still_puts_everything_back(tmp_path: Path) -> None:
    job, run = trained(tmp_path / "run")
    before = state_of(job)

    def failing(batch: Any) -> Any:
        job.step(batch)
        raise RuntimeError("out of memory")

    run._train_step = failing
    with pytest.raises(RuntimeError, match="out of memory"), run.rehearsing(10) as rehearsal:
        rehearsal.take_step()
    assert state_of(job) == before
    run.close()


def test_a_free_loop_cannot_be_rehearsed_and_says_why(tmp_path: Path) -> None:
    job = make_job()
    with job.run(tmp_path / "run", steps=3) as run:
        train(job, run)
    with pytest.raises(ConfigError, match="the step is a function"), run.rehearsing(2):
        pass


def test_without_a_checkpoint_there_is_nothing_to_rehearse_from(tmp_path: Path) -> None:
    job = make_job()
    with (
        pytest.raises(RunError, match="no good checkpoint"),
        job.run(tmp_path / "run", train_step=job.step).rehearsing(2),
    ):
        pass
