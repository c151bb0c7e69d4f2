"""A run is recorded, saved and continued by itself, and changes nothing about the training."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.run.job import QUICK, make_job, train

from holdfast.errors import ConfigError, RunError, RunFolderError, RunLockedError, RunMismatchError
from holdfast.metrics import AggregationType, Metric, MetricsAggregator
from holdfast.run import Run, RunLog, RunOptions
from holdfast.run.generators import generator_states
from holdfast.run.step_line import number_from_bits


def without_a_run(steps: int) -> tuple[list[float], int]:
    job = make_job()
    losses = []
    for batch in job.loader:
        losses.append(job.step(batch).item())
        if len(losses) == steps:
            break
    job.loader.close()
    return losses, job.hash


def test_losses_and_parameters_are_bit_identical_with_and_without_a_run(tmp_path: Path) -> None:
    losses, expected = without_a_run(20)
    job = make_job()
    with job.run(tmp_path / "run", steps=20) as run:
        train(job, run)
    assert [record["loss"] for record in RunLog(tmp_path / "run").steps()] == losses
    assert job.hash == expected


def test_a_run_leaves_every_generator_where_it_was(tmp_path: Path) -> None:
    job = make_job()
    random.seed(1)
    np.random.seed(1)
    with job.run(tmp_path / "run", steps=7) as run:
        for _ in run:
            before = json.dumps(generator_states(), default=lambda tensor: tensor.tolist())
            run.step(loss=1.0)
    after = json.dumps(generator_states(), default=lambda tensor: tensor.tolist())
    assert before == after


def test_the_same_program_started_again_continues_by_itself(tmp_path: Path) -> None:
    losses, expected = without_a_run(23)
    first = make_job()
    for batch in (run := first.run(tmp_path / "run")):
        run.step(loss=first.step(batch))
        if run.step_number == 13:  # three steps after a checkpoint
            break
    run.close()
    second = make_job()
    with second.run(tmp_path / "run", steps=23) as run:
        assert run.resume() == 10
        train(second, run)
    log = RunLog(tmp_path / "run")
    assert [record["loss"] for record in log.steps()] == losses
    assert second.hash == expected
    assert [record["step"] for record in log.records() if record.get("redone")] == [10, 11, 12]
    assert log.attempts == [1, 2]


def test_the_bits_in_the_log_are_those_of_the_loss_and_of_the_gradient_norm(tmp_path: Path) -> None:
    job = make_job()
    norms = []
    with job.run(tmp_path / "run", steps=6) as run:
        for batch in run:
            loss = job.step(batch)
            norms.append(torch.stack([p.grad.norm() for p in job.model.parameters() if p.grad is not None]).norm())
            run.step(loss=loss)
    for record, norm in zip(RunLog(tmp_path / "run").steps(), norms, strict=True):
        assert number_from_bits(record["loss_bits"]) == record["loss"]
        assert number_from_bits(record["grad_norm_bits"]) == record["grad_norm"] == pytest.approx(float(norm))


def test_the_gradient_norm_of_every_step_is_in_the_log_whether_the_program_passes_it_or_not(tmp_path: Path) -> None:
    measured = make_job()
    train(measured, measured.run(tmp_path / "measured", steps=30))
    job = make_job()
    run = job.run(tmp_path / "told", steps=30)
    for batch in run:
        loss = job.step(batch)
        is_passed = run.step_number not in (3, 14, 15, 16, 29)  # it stops passing it now and then
        run.step(loss=loss, grad_norm=-1.0 if is_passed else None)
    expected, told = (RunLog(tmp_path / name).steps() for name in ("measured", "told"))
    for record, other in zip(told, expected, strict=True):
        is_passed = record["step"] not in (3, 14, 15, 16, 29)
        assert record["grad_norm"] == (-1.0 if is_passed else other["grad_norm"])
        assert {**record, **dict.fromkeys(other)}.keys() == other.keys()
        assert [record.get(name) for name in record if "/" in name] == [other[name] for name in other if "/" in name]


def test_nan_and_infinities_are_written_as_such(tmp_path: Path) -> None:
    job = make_job()
    values = iter([float("nan"), float("inf"), float("-inf"), 1.0])
    with job.run(tmp_path / "run", steps=4) as run:
        for _ in run:
            run.step(loss=torch.tensor(next(values)))
    text = next((tmp_path / "run" / "log").iterdir()).read_text()
    assert '"loss":NaN' in text
    assert '"loss":Infinity' in text
    assert '"loss":-Infinity' in text
    assert [str(record["loss"]) for record in RunLog(tmp_path / "run").steps()] == ["nan", "inf", "-inf", "1.0"]


def test_with_gradient_accumulation_the_log_maps_steps_to_batches(tmp_path: Path) -> None:
    job = make_job()
    with job.run(tmp_path / "run", steps=5) as run:
        for taken, batch in enumerate(run, start=1):
            loss = torch.nn.functional.mse_loss(job.model(batch["x"]), batch["y"])
            torch.autograd.backward(loss)
            if taken % 3 == 0:
                job.optimizer.step()
                job.optimizer.zero_grad()
                run.step(loss=loss)
    log = RunLog(tmp_path / "run")
    assert [record["batches"] for record in log.steps()] == [[3 * n, 3 * n + 3] for n in range(5)]
    assert make_job().run(tmp_path / "run").resume() == 5
    assert log.events("checkpoint")[-1]["step"] == 5


def test_a_step_function_trains_by_itself_and_is_given_the_batches_of_a_step(tmp_path: Path) -> None:
    job = make_job()
    seen: list[int] = []

    def train_step(batches: list[Any]) -> dict[str, Any]:
        seen.append(len(batches))
        return {"loss": sum(job.step(batch) for batch in batches), "tokens": 7}

    with job.run(tmp_path / "run", train_step=train_step, accumulate=2) as run:
        run.train(steps=4)
    assert seen == [2, 2, 2, 2]
    records = RunLog(tmp_path / "run").steps()
    assert [record["batches"] for record in records] == [[0, 2], [2, 4], [4, 6], [6, 8]]
    assert {record["tokens"] for record in records} == {7.0}


def test_an_evaluation_stays_out_of_the_series_and_changes_no_generator(tmp_path: Path) -> None:
    losses, expected = without_a_run(8)
    job = make_job()
    with job.run(tmp_path / "run", steps=8) as run:
        for batch in run:
            run.step(loss=job.step(batch))
            with run.evaluating() as evaluation:
                evaluation.record(loss=float(torch.rand(())), accuracy=0.5)
    log = RunLog(tmp_path / "run")
    assert [record["loss"] for record in log.steps()] == losses
    assert job.hash == expected
    assert len(log.events("evaluation")) == 8
    assert log.goodput().seconds["evaluation"] > 0


def test_metrics_continue_with_the_run(tmp_path: Path) -> None:
    for target in (6, 12):
        job, metrics = make_job(), MetricsAggregator()
        with job.run(tmp_path / "run", steps=target, metrics=metrics) as run:
            for batch in run:
                metrics.update([Metric("numbers", "seen", len(batch["x"]), AggregationType.SUM)])
                run.step(loss=job.step(batch))
    assert metrics.get_metrics()["numbers"]["seen"] == 48


@pytest.mark.parametrize(("every", "expected"), [(None, [0, 5, 6]), (2, [0, 2, 4, 5, 6])])
def test_the_figures_of_the_metrics_are_in_the_log_as_often_as_asked_for(
    tmp_path: Path, every: int | None, expected: list[int]
) -> None:
    job, metrics = make_job(), MetricsAggregator()
    options = replace(QUICK, metrics_every=every)
    with job.run(tmp_path / "run", steps=6, metrics=metrics, options=options) as run:
        for batch in run:
            metrics.update([Metric("numbers", "seen", len(batch["x"]), AggregationType.SUM)])
            run.step(loss=job.step(batch))
    figures = RunLog(tmp_path / "run").events("metrics")
    assert [event["step"] for event in figures] == expected
    assert [event["figures"].get("numbers/seen", 0) for event in figures] == [4 * step for step in expected]


def test_a_second_run_in_the_folder_is_refused_and_names_the_first(tmp_path: Path) -> None:
    first, second = make_job().run(tmp_path / "run"), make_job().run(tmp_path / "run")
    first.resume()
    with pytest.raises(RunLockedError) as caught:
        second.resume()
    assert caught.value.pid == os.getpid()
    first.close()
    second.resume()
    second.close()


@pytest.mark.parametrize(
    ("change", "named"), [({"width": 13}, "0.weight was"), ({"data_seed": 6}, "seed was 5 and is 6")]
)
def test_another_model_or_other_data_is_refused_naming_what_differs(
    tmp_path: Path, change: dict[str, int], named: str
) -> None:
    job = make_job()
    with job.run(tmp_path / "run", steps=6) as run:
        train(job, run)
    with pytest.raises(RunMismatchError) as caught:
        make_job(**change).run(tmp_path / "run").resume()
    assert named in str(caught.value)


def test_changed_samples_are_refused(tmp_path: Path) -> None:
    job = make_job()
    with job.run(tmp_path / "run", steps=6) as run:
        train(job, run)
    values = np.random.default_rng(1).normal(size=(256, 6)).astype(np.float32)
    with pytest.raises(RunMismatchError, match="numbers"):
        make_job(values=values).run(tmp_path / "run").resume()


def test_a_folder_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(RunFolderError, match="another program"):
        make_job().run(tmp_path / "run").resume()


def test_fresh_begins_again_and_moves_the_old_run_aside(tmp_path: Path) -> None:
    job = make_job()
    with job.run(tmp_path / "run", steps=6) as run:
        train(job, run)
    with make_job().run(tmp_path / "run", fresh=True) as run:
        assert run.resume() == 0
    (earlier,) = (tmp_path / "run" / "earlier").iterdir()
    assert [record["step"] for record in RunLog(earlier).steps()] == list(range(6))


def test_a_damaged_latest_checkpoint_is_passed_over_and_the_log_says_so(tmp_path: Path) -> None:
    expected = without_a_run(15)[1]
    job = make_job()
    with job.run(tmp_path / "run", steps=10) as run:
        train(job, run)
    flip(tmp_path / "run" / "checkpoints" / "step-00000010")
    job = make_job()
    with job.run(tmp_path / "run", steps=15) as run:
        assert run.resume() == 5
        train(job, run)
    start = RunLog(tmp_path / "run").events("start")[-1]
    assert start["checkpoint"] == "step-00000005"
    assert start["passed_over"][0][0] == "step-00000010"
    assert job.hash == expected


def test_a_run_does_not_begin_at_step_0_beside_checkpoints_it_cannot_read(tmp_path: Path) -> None:
    job = make_job()
    with job.run(tmp_path / "run", steps=6) as run:
        train(job, run)
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        flip(path)
    with pytest.raises(RunFolderError, match="none of the checkpoints can be used"):
        make_job().run(tmp_path / "run").resume()


def flip(checkpoint: Path) -> None:
    """Flip one bit in the middle of the first tensor of a checkpoint."""
    file = max(checkpoint.glob("*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        entry = next(each for each in archive.infolist() if each.filename.endswith("data/0"))
    content[entry.header_offset + 30 + len(entry.filename) + 64 + entry.file_size // 2] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_the_preemption_notice_saves_and_ends_as_the_signal_would(tmp_path: Path, number: int) -> None:
    before = signal.getsignal(number)
    job = make_job()
    run = job.run(tmp_path / "run", options=RunOptions(save_every=1000))

    def notice(_: Any) -> None:
        if run.step_number == 3:
            os.kill(os.getpid(), number)

    with pytest.raises(SystemExit) as caught:
        train(job, run, on_batch=notice)
    assert caught.value.code == 128 + number
    log = RunLog(tmp_path / "run")
    assert log.events("checkpoint")[-1]["reason"] == "preempted"
    assert log.events("preempted")[0]["step"] == 4
    assert make_job().run(tmp_path / "run").resume() == 4
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_forked_process_ends_by_the_signals_that_the_run_would_take_for_a_notice(tmp_path: Path, number: int) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        job = make_job()
        with job.run(tmp_path / "run", steps=2, options=replace(QUICK, handle_signals=True)) as run:
            for batch in run:
                child = os.fork()
                if child == 0:
                    try:
                        os.kill(os.getpid(), number)
                        threading.Event().wait(60)
                    finally:
                        os._exit(0)
                _, status = os.waitpid(child, 0)
                assert os.WIFSIGNALED(status)
                assert os.WTERMSIG(status) == number
                run.step(loss=job.step(batch))
        assert RunLog(tmp_path / "run").events("preempted") == []
    finally:
        signal.signal(number, before)


def test_two_steps_for_one_batch_and_reserved_names_are_refused(tmp_path: Path) -> None:
    job = make_job()
    with job.run(tmp_path / "run", steps=1) as run:
        for _ in run:
            with pytest.raises(ConfigError, match="name is reserved"):
                run.step(loss=1.0, step_time=3.0)
            run.step(loss=1.0)
            with pytest.raises(RunError, match="twice for one batch"):
                run.step(loss=1.0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"config": {"where": object()}}, "config cannot be written"),
        ({"parts": {"monitor": torch.nn.Linear(1, 1)}}, "reserved"),
        ({"steps": -1}, "steps"),
        ({"accumulate": 1.5}, "accumulate"),
    ],
)
def test_what_a_start_would_fail_on_is_refused_where_it_is_passed(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_job().run(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_steps_and_figures_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    job = make_job()
    with job.run(tmp_path / "run", train_step=job.step) as run:
        for steps in (-1, 1.5, "3", True):
            with pytest.raises(ConfigError, match="steps"):
                run.train(steps=steps)  # type: ignore[arg-type]
        next(iter(run))
        for loss in ("1.5", b"1", torch.ones(2), [1.0], 10**400):
            with pytest.raises(ConfigError):
                run.step(loss=loss)
            with run.evaluating() as evaluation, pytest.raises(ConfigError):
                evaluation.record(loss=loss)


def test_a_part_that_the_program_no_longer_has_is_noted(tmp_path: Path) -> None:
    job = make_job()
    train(job, job.run(tmp_path / "run", steps=3, parts={"average": torch.nn.Linear(1, 1)}))
    job = make_job()
    train(job, job.run(tmp_path / "run", steps=4))
    (note,) = RunLog(tmp_path / "run").events("start")[-1]["notes"]
    assert "average" in note


def test_a_part_without_a_state_is_refused_by_name(tmp_path: Path) -> None:
    job = make_job()
    with pytest.raises(ConfigError, match="loader has no state_dict"):
        Run(tmp_path, model=job.model, loader=[1, 2, 3])


def test_nothing_is_touched_before_the_first_batch_is_asked_for(tmp_path: Path) -> None:
    make_job().run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
