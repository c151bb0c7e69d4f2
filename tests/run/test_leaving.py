"""However a loop is left, what is saved is what ``step`` was told of, and the folder is let go."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run.job import QUICK, Job, make_job, train
from tests.run.lives import live
from torch import nn

from holdfast.errors import ConfigError, RunError, RunLockedError, RunMismatchError
from holdfast.run import Run, RunLog, RunOptions
from holdfast.run.audit import audit

SELDOM = RunOptions(save_every=1000, handle_signals=False)


def batches_of(folder: Path) -> list[list[int]]:
    return [record["batches"] for record in RunLog(folder).steps()]


def undisturbed(folder: Path, steps: int) -> int:
    job = make_job()
    train(job, job.run(folder, steps=steps))
    return job.hash


def test_a_loop_that_ends_by_itself_writes_its_ending_and_lets_the_folder_go(tmp_path: Path) -> None:
    for steps in (6, 11):  # two cells of one notebook
        job = make_job()
        run = job.run(tmp_path / "run", steps=steps)
        train(job, run)
        assert run.step_number == steps
        assert RunLog(tmp_path / "run").events("end")[-1]["step"] == steps
    assert audit(tmp_path / "run", {"numbers": [0]}).ended


def test_a_run_that_nobody_holds_any_more_lets_the_folder_go(tmp_path: Path) -> None:
    def leaves() -> None:
        job = make_job()
        run = job.run(tmp_path / "run", rollback=None)
        for batch in run:
            run.step(loss=job.step(batch))
            if run.step_number == 7:
                break

    leaves()
    assert RunLog(tmp_path / "run").events("end")[-1]["step"] == 7
    assert make_job().run(tmp_path / "run").resume() == 5


def test_an_earlier_run_of_the_same_process_is_named_as_such(tmp_path: Path) -> None:
    earlier = make_job().run(tmp_path / "run")
    earlier.resume()
    with pytest.raises(RunLockedError, match="of this process is still open") as caught:
        make_job().run(tmp_path / "run").resume()
    assert "close()" in str(caught.value)
    earlier.close()
    assert make_job().run(tmp_path / "run").resume() == 0


@pytest.mark.soak  # the same finalizer as above, at the cost of another Python
def test_a_program_that_ends_after_a_break_has_written_its_ending(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from tests.run.job import make_job
job = make_job()
run = job.run(Path(sys.argv[1]))
for batch in run:
    run.step(loss=job.step(batch))
    if run.step_number == 3:
        break
"""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")], check=True, env=environment)
    assert RunLog(tmp_path / "run").events("end")[-1]["step"] == 3


def test_looking_at_a_run_touches_nothing_and_restores_nothing(tmp_path: Path) -> None:
    job = make_job()
    run = job.run(tmp_path / "run", options=SELDOM)
    assert run.step_number == 0
    assert not (tmp_path / "run").exists()
    with pytest.raises(RunError, match="not begun"), run.evaluating():
        pass
    for batch in run:
        run.step(loss=job.step(batch))
        if run.step_number == 7:
            break
    run.close()
    trained, attempts = job.hash, len(RunLog(tmp_path / "run").attempts)
    assert run.step_number == 7
    assert job.hash == trained
    assert len(RunLog(tmp_path / "run").attempts) == attempts
    assert make_job().run(tmp_path / "run").step_number == 0, "of its newest checkpoint"


def test_an_evaluation_after_the_end_is_of_the_weights_in_memory_and_is_recorded(tmp_path: Path) -> None:
    job = make_job()
    run = job.run(tmp_path / "run", steps=7)
    train(job, run)
    trained = job.hash
    with run.evaluating("final") as evaluation:
        assert job.hash == trained
        torch.rand(3)
        evaluation.record(loss=0.5)
    log = RunLog(tmp_path / "run")
    (told,) = log.events("evaluation")
    assert (told["name"], told["step"], told["figures"]) == ("final", 7, {"loss": 0.5})
    assert [record["step"] for record in log.steps()] == list(range(7))
    assert log.verify() == []
    assert audit(tmp_path / "run", {"numbers": [0]}).ended
    again = make_job()
    assert again.run(tmp_path / "run").resume() == 7
    assert again.hash == trained


def test_a_loop_left_before_the_batch_was_trained_on_gives_it_back(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "whole", 10)
    job = make_job()
    with job.run(tmp_path / "run", options=SELDOM, steps=10) as run:
        for batch in run:
            if run.step_number == 6:  # "out of time", at the top of the loop
                break
            run.step(loss=job.step(batch))
    assert RunLog(tmp_path / "run").events("checkpoint")[-1]["step"] == 6
    again = make_job()
    train(again, again.run(tmp_path / "run", steps=10))
    assert batches_of(tmp_path / "run") == [[n, n + 1] for n in range(10)]
    assert again.hash == expected


@pytest.mark.parametrize("named", [False, True], ids=["one model", "models by name"])
@pytest.mark.parametrize("whole", [True, False], ids=["after the update", "after the forward pass"])
def test_a_loop_left_in_the_middle_of_a_step_is_not_saved(tmp_path: Path, whole: bool, named: bool) -> None:
    expected = undisturbed(tmp_path / "whole", 10)
    job = make_job()
    with job.run(tmp_path / "run", steps=10, model={"net": job.model} if named else job.model) as run:
        for batch in run:
            if run.step_number == 6:  # weights or generators have moved on, and the run does not know
                job.step(batch) if whole else job.model(batch["x"])
                break
            run.step(loss=job.step(batch))
    log = RunLog(tmp_path / "run")
    assert [event["step"] for event in log.events("unsaved")] == [6]
    assert log.events("checkpoint")[-1]["step"] == 5
    again = make_job()
    train(again, again.run(tmp_path / "run", steps=10, model={"net": again.model} if named else again.model))
    assert again.hash == expected


@pytest.mark.parametrize("per_update", [1, 4])
def test_gradients_that_a_checkpoint_would_lose_are_told_of(tmp_path: Path, per_update: int) -> None:
    job = make_job()
    run = job.run(tmp_path / "run", steps=8)
    told = pytest.warns(RuntimeWarning, match="once per optimizer step")
    with told if per_update > 1 else contextlib.nullcontext():
        for batch in run:
            loss = nn.functional.mse_loss(job.model(batch["x"]), batch["y"])
            torch.autograd.backward(loss)
            if run.step_number % per_update == per_update - 1:
                job.optimizer.step()
                job.optimizer.zero_grad()
            run.step(loss=loss)


class Counted:
    """A loader with a state, which cannot go back."""

    def __init__(self, end: int = 10**9) -> None:
        self.next, self._end = 0, end

    def __iter__(self) -> Any:
        while self.next < self._end:
            self.next += 1
            yield {"x": torch.full((2, 6), float(self.next)), "y": torch.zeros(2, 1), "number": self.next - 1}

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def test_with_a_loader_that_cannot_go_back_no_batch_is_lost_either(tmp_path: Path) -> None:
    def run_of(job: Job) -> Run:
        options = RunOptions(save_every=4, handle_signals=False)
        return Run(tmp_path / "run", model=job.model, loader=Counted(), steps=9, options=options)

    job, seen = make_job(), []
    with run_of(job) as run:
        for batch in run:
            if run.step_number == 6:
                break
            run.step(loss=job.step(batch))
    with run_of(job) as run:
        for batch in run:
            seen.append(batch["number"])
            run.step(loss=job.step(batch))
    assert seen == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("after_step", [True, False])
def test_a_loop_that_was_left_can_be_entered_again(tmp_path: Path, after_step: bool) -> None:
    expected = undisturbed(tmp_path / "whole", 10)
    job = make_job()
    run = job.run(tmp_path / "run", steps=10)
    for batch in run:
        if not after_step and run.step_number == 4:
            break
        run.step(loss=job.step(batch))
        if after_step and run.step_number == 4:
            break
    train(job, run)
    assert batches_of(tmp_path / "run") == [[n, n + 1] for n in range(10)]
    assert job.hash == expected


def test_a_loop_left_before_the_batch_was_trained_on_gets_it_again_from_a_loader_that_cannot_go_back(
    tmp_path: Path,
) -> None:
    job, trained_on = make_job(), []
    options = RunOptions(save_every=2, handle_signals=False)
    run = Run(tmp_path / "run", model=job.model, loader=Counted(), steps=5, options=options)
    left = {1, 3}
    while run.step_number < 5:
        taken: list[int] = []
        for batch in run:
            if run.step_number in left and len(taken) == 1:
                left.remove(run.step_number)
                break
            taken.append(batch["number"])
            if len(taken) == 2:
                trained_on.append(taken)
                run.step(loss=job.step(batch))
                taken = []
    assert trained_on == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert batches_of(tmp_path / "run") == [[2 * n, 2 * n + 2] for n in range(5)]


@pytest.mark.parametrize("save_every", [1, 1000])
@pytest.mark.parametrize("ends", ["with", "close"])
def test_steps_of_fewer_batches_than_a_loop_was_left_with_lose_none_of_them(
    tmp_path: Path, save_every: int, ends: str
) -> None:
    def run_of() -> Run:
        options = RunOptions(save_every=save_every, handle_signals=False)
        return Run(tmp_path / "run", model=make_job().model, loader=Counted(), options=options)

    trained_on = []
    run = run_of()
    leaving: Any = run if ends == "with" else contextlib.closing(run)
    with leaving:
        for batch in run:
            if batch["number"] == 3:  # of a step that four batches were meant for
                break
        for _ in range(2):  # and now one batch makes a step, and the loop is left after each
            for batch in run:
                trained_on.append(batch["number"])
                run.step(loss=1.0)
                break
    with run_of() as run:
        made = run.resume()
        del trained_on[made:]
        for batch in run:
            trained_on.append(batch["number"])
            run.step(loss=1.0)
            if run.step_number == 6:
                break
    assert trained_on == [0, 1, 2, 3, 4, 5]
    assert batches_of(tmp_path / "run") == [[n, n + 1] for n in range(6)]
    assert RunLog(tmp_path / "run").events("unsaved") or (save_every > 1 and ends == "close")


def test_a_batch_that_a_rollback_left_out_is_left_out_once_more_where_a_loop_is_entered_again(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", model=make_job().model, loader=Counted(), options=SELDOM)
    with run:
        run.resume()
        assert run._loop is not None
        run._loop.attempt.discard = {0, 2}
        seen = []
        for batch in run:
            seen.append(batch["number"])
            if len(seen) == 2:
                break
        for batch in run:
            seen.append(batch["number"])
            if len(seen) == 5:
                run.step(loss=1.0)
                break
    assert seen == [1, 3, 1, 3, 4]
    assert batches_of(tmp_path / "run") == [[1, 5]]


class Passes(Counted):
    """A loader that begins a pass whenever it is iterated, as torch's do."""

    def __iter__(self) -> Any:
        self.next = 0
        yield from super().__iter__()


@pytest.mark.parametrize("after_step", [True, False])
def test_a_pass_that_was_left_is_continued_and_not_begun_again(tmp_path: Path, after_step: bool) -> None:
    job, trained_on = make_job(), []
    options = RunOptions(save_every=2, handle_signals=False)
    with Run(tmp_path / "run", model=job.model, loader=Passes(4), steps=8, options=options) as run:
        left = {2, 5}
        while run.step_number < 8:
            for batch in run:
                if not after_step and run.step_number in left:
                    left.remove(run.step_number)
                    break
                trained_on.append(batch["number"])
                run.step(loss=job.step(batch))
                if after_step and run.step_number in left:
                    left.remove(run.step_number)
                    break
    assert trained_on == [0, 1, 2, 3, 0, 1, 2, 3]


def test_steps_are_counted_when_the_program_says_so(tmp_path: Path) -> None:
    job = make_job()
    counts = []
    with job.run(tmp_path / "run", steps=3) as run:
        for batch in run:
            before = run.step_number
            run.step(loss=job.step(batch))
            counts.append((before, run.step_number))
            if run.step_number == 2:
                with run.evaluating() as evaluation:
                    evaluation.record(loss=1.0)
        with pytest.raises(RunError, match="outside the loop"):
            run.step(loss=1.0)
    assert counts == [(0, 1), (1, 2), (2, 3)]
    assert RunLog(tmp_path / "run").events("evaluation")[0]["step"] == 2


def test_a_program_that_forgets_to_say_so_is_warned(tmp_path: Path) -> None:
    model = make_job().model
    with pytest.warns(RuntimeWarning) as warned:
        assert len(list(Run(tmp_path / "run", model=model, loader=Counted(300), steps=3, options=QUICK))) == 300
    told = [str(warning.message) for warning in warned]
    assert ["256 batches" in told[0], "never called" in told[1]] == [True, True]


@pytest.mark.parametrize("loss", [torch.tensor(1j), 10**400, "high", [1.0, 2.0]])
def test_what_is_no_number_is_refused_as_such(tmp_path: Path, loss: Any) -> None:
    with make_job().run(tmp_path / "run", steps=2) as run:
        next(iter(run))
        with pytest.raises(ConfigError, match="numbers"):
            run.step(loss=loss)


def with_optimizer(folder: Path, make: Any, *, steps: int) -> Run:
    job = make_job()
    optimizer = make(job.model)
    run = Run(folder, model=job.model, optimizer=optimizer, loader=job.loader, steps=steps, options=QUICK)
    for batch in run:
        loss = torch.nn.functional.mse_loss(job.model(batch["x"]), batch["y"])
        torch.autograd.backward(loss)
        for each in optimizer if isinstance(optimizer, list) else [optimizer]:
            each.step()
            each.zero_grad()
        run.step(loss=loss)
    return run


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: torch.optim.SGD(model.parameters(), lr=0.1), "AdamW"),
        (lambda model: torch.optim.RMSprop(model.parameters()), "AdamW"),
        (lambda model: [torch.optim.AdamW([parameter]) for parameter in model.parameters()], "AdamW"),
        (lambda model: [], "AdamW"),
        (lambda model: torch.optim.AdamW([{"params": [each]} for each in model.parameters()]), "groups"),
    ],
)
def test_another_optimizer_is_refused_naming_what_differs(tmp_path: Path, make: Any, message: str) -> None:
    with_optimizer(tmp_path / "run", lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2), steps=5)
    with pytest.raises(RunMismatchError, match="optimizer") as caught:
        with_optimizer(tmp_path / "run", make, steps=6)
    assert message in str(caught.value)


def test_other_options_of_the_same_optimizer_are_noted_and_not_used(tmp_path: Path) -> None:
    with_optimizer(tmp_path / "run", lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2), steps=5)
    with_optimizer(tmp_path / "run", lambda model: torch.optim.AdamW(model.parameters(), lr=5.0), steps=6)
    log = RunLog(tmp_path / "run")
    (note,) = log.events("start")[-1]["notes"]
    assert "sets lr of AdamW to 5.0" in note
    assert [record["lr"] for record in log.steps()] == [1e-2] * 6


def test_data_that_ends_before_the_steps_do_is_said(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    run = Run(tmp_path / "run", model=model, loader=Counted(4), steps=9, options=QUICK)

    def go_through() -> None:
        for _ in run:
            run.step(loss=1.0)

    with pytest.warns(RuntimeWarning, match="the data has ended after 4 of 9 steps"):
        go_through()


def test_a_process_forked_from_a_run_can_neither_continue_nor_end_it(tmp_path: Path) -> None:
    job = make_job()
    run = job.run(tmp_path / "run", steps=11)
    batches = iter(run)
    for _ in range(7):
        run.step(loss=job.step(next(batches)))

    def child() -> None:
        for used in (
            lambda: next(batches),
            lambda: run.step(loss=1.0),
            lambda: next(iter(run)),
            run.evaluating().__enter__,
        ):
            with pytest.raises(RunLockedError, match="forked from"):
                used()
        with run:
            pass
        run.close()

    assert live(child) == 0
    for batch in batches:
        run.step(loss=job.step(batch))
    assert RunLog(tmp_path / "run").verify() == []
    assert [record["step"] for record in RunLog(tmp_path / "run").steps()] == list(range(11))
    assert job.hash == undisturbed(tmp_path / "undisturbed", 11)
