"""A run that goes wrong is rolled back around the bad batches, as if they had never been there."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.run.job import Job, make_job, train
from tests.run.lives import kill_at, live

import holdfast.run.rollback
from holdfast.errors import ConfigError, RunStoppedError
from holdfast.run import Cure, RollbackOptions, RunLog, RunOptions
from holdfast.run.checkpoints import Checkpoints
from holdfast.run.policy import Action, Policy

OPTIONS = RunOptions(save_every=10, keep=20, handle_signals=False)
BAD = 33


def nan_job(*steps: int) -> Job:
    """Return a job in which every sample of these steps is NaN."""
    values = np.random.default_rng(0).normal(size=(1024, 6)).astype(np.float32)
    clean = make_job(values=values)
    for step in steps:
        for sample in clean.loader.samples_in(step):
            values[sample.index] = np.nan
    clean.loader.close()
    return make_job(values=values)


def rolled_back(folder: Path, *steps: int, **more: Any) -> Job:
    job = nan_job(*steps)
    with job.run(folder, steps=50, options=OPTIONS, on_finding={"nan": "rollback"}, **more) as run:
        train(job, run)
    return job


@pytest.mark.parametrize("cure", ["window", "mask"])
def test_after_a_rollback_the_run_is_bit_for_bit_one_that_never_saw_the_window(
    tmp_path: Path, cure: Literal["window", "mask"]
) -> None:
    job = rolled_back(tmp_path / "run", BAD, rollback=RollbackOptions(cure=cure))
    log = RunLog(tmp_path / "run")
    (decision,) = log.events("rollback")
    assert (decision["to"], decision["suspects"], decision["finding"]["onset"]) == (30, [BAD, BAD + 1], BAD)
    # The same checkpoint, taken over by a run in which that window is skipped from the outset.
    other = nan_job(BAD)
    shutil.copytree(tmp_path / "run" / "checkpoints", tmp_path / "other" / "checkpoints")
    shutil.copytree(tmp_path / "run" / "log", tmp_path / "other" / "log")
    shutil.copy(tmp_path / "run" / "run.json", tmp_path / "other" / "run.json")
    for step in (40, 50):
        shutil.rmtree(tmp_path / "other" / "checkpoints" / f"step-{step:08d}")
    for path in (tmp_path / "other" / "log").iterdir():
        path.unlink()
    with other.run(tmp_path / "other", steps=50, options=OPTIONS) as run:
        assert run.resume() == 30
        leave_out = other.loader.skip if cure == "window" else other.loader.mask
        leave_out(steps=range(BAD, BAD + 1))
        train(other, run)
    assert job.hash == other.hash
    assert [r["loss_bits"] for r in log.steps()[30:]] == [r["loss_bits"] for r in RunLog(tmp_path / "other").steps()]
    assert all(np.isfinite(record["loss"]) for record in log.steps())


def test_a_rollback_is_a_record_and_what_it_left_behind_is_kept(tmp_path: Path) -> None:
    job = nan_job(BAD)
    run = job.run(tmp_path / "run", steps=50, options=OPTIONS, on_finding={"nan": "rollback"})
    train(job, run)
    run.close()
    log = RunLog(tmp_path / "run")
    every = [record["step"] for record in log.records() if "event" not in record and "step" in record]
    assert every == [*range(34), *range(30, 50)]
    assert [record["step"] for record in log.steps()] == list(range(50))
    assert log.verify() == []
    assert [record["step"] for record in log.records() if record.get("redone")] == [30, 31, 32, 33]


def test_where_steps_before_the_onset_are_suspect_too_no_checkpoint_among_them_is_trusted(tmp_path: Path) -> None:
    rolled_back(tmp_path / "run", BAD, rollback=RollbackOptions(before=4))
    (decision,) = RunLog(tmp_path / "run").events("rollback")
    assert (decision["to"], decision["suspects"]) == (20, [BAD - 4, BAD + 1])


def test_a_crash_after_a_rollback_does_not_forget_the_cure(tmp_path: Path) -> None:
    expected = rolled_back(tmp_path / "whole", BAD).hash
    first = nan_job(BAD)
    run = first.run(tmp_path / "run", steps=50, options=OPTIONS, on_finding={"nan": "rollback"})
    for batch in run:
        run.step(loss=first.step(batch))
        if run.log.events("rolled_back") and run.step_number == 36:
            break  # before any checkpoint that holds the skip
    run.close()
    assert max(int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").iterdir()) == 30
    second = nan_job(BAD)
    with second.run(tmp_path / "run", steps=50, options=OPTIONS, on_finding={"nan": "rollback"}) as run:
        train(second, run)
    assert second.hash == expected
    assert len(RunLog(tmp_path / "run").events("rollback")) == 1


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (Checkpoints, "abandon", False),  # decided, and nothing else
        (Checkpoints, "abandon", True),
        (holdfast.run.rollback, "restore_checkpoint", True),
        (Cure, "apply", True),  # all done, but not yet said
    ],
)
def test_a_kill_in_the_middle_of_a_rollback_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    options = RollbackOptions(before=4)  # step 30 is suspect, and its checkpoint is abandoned
    expected = rolled_back(tmp_path / "whole", BAD, rollback=options).hash
    with monkeypatch.context() as patched:
        kill_at(patched, owner, name, after=after)
        assert live(lambda: rolled_back(tmp_path / "run", BAD, rollback=options)) == -signal.SIGKILL
    assert rolled_back(tmp_path / "run", BAD, rollback=options).hash == expected
    log = RunLog(tmp_path / "run")
    (decision,) = log.events("rollback")
    assert decision["to"] == 20
    assert log.verify() == []
    assert [record["step"] for record in log.steps()] == list(range(50))


def test_two_bad_places_are_left_out_one_after_the_other(tmp_path: Path) -> None:
    job = rolled_back(tmp_path / "run", BAD, BAD + 5)
    decisions = RunLog(tmp_path / "run").events("rollback")
    assert [decision["to"] for decision in decisions] == [30, 30]
    assert decisions[1]["suspects"] == [BAD + 4, BAD + 6]  # the window doubles at the same checkpoint
    assert all(torch.isfinite(parameter).all() for parameter in job.model.parameters())


def test_a_run_that_rolls_back_too_often_stops(tmp_path: Path) -> None:
    with pytest.raises(RunStoppedError, match="maximum number of rollbacks"):
        rolled_back(tmp_path / "run", BAD, BAD + 5, rollback=RollbackOptions(max_rollbacks=1))
    log = RunLog(tmp_path / "run")
    assert len(log.events("rollback")) == 1
    assert len(log.events("stopped")) == 1


def test_the_learning_rate_can_be_scaled(tmp_path: Path) -> None:
    rolled_back(tmp_path / "run", BAD, rollback=RollbackOptions(rate_scale=0.5))
    rates = {record["step"]: record["lr"] for record in RunLog(tmp_path / "run").steps()}
    expected = {step: 1e-2 * 0.7 ** (step // 9) * (0.5 if step >= 30 else 1.0) for step in rates}
    assert rates == pytest.approx(expected)


def test_without_a_window_the_same_steps_are_done_again_and_fail_again(tmp_path: Path) -> None:
    with pytest.raises(RunStoppedError):
        rolled_back(tmp_path / "run", BAD, rollback=RollbackOptions(cure="none"))
    assert len(RunLog(tmp_path / "run").events("rollback")) == 3


def test_a_function_may_decide_what_is_left_out(tmp_path: Path) -> None:
    asked = []

    def cure(finding: Any, suspects: tuple[int, int]) -> Cure:
        asked.append((finding["failure"], suspects))
        return Cure(skip_batches=suspects)

    rolled_back(tmp_path / "run", BAD, rollback=RollbackOptions(cure=cure))
    assert asked == [("nan", (BAD, BAD + 1))]


class Counted:
    """Yields numbered batches; its state is the number, and beginning a pass draws, as torch's loaders do."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Any:
        torch.rand(())
        return self._rest()

    def _rest(self) -> Any:
        while self.next < 60:
            self.next += 1
            bad = float("nan") if self.next - 1 == BAD else 0.1 * self.next
            yield {"x": torch.full((4, 6), bad), "y": torch.ones(4, 1)}

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def test_a_loader_that_cannot_skip_has_its_bad_batches_thrown_away(tmp_path: Path) -> None:
    job = make_job()
    with job.run(tmp_path / "run", loader=Counted(), options=OPTIONS, on_finding={"nan": "rollback"}) as run:
        train(job, run)
    steps = RunLog(tmp_path / "run").steps()
    assert [record["batches"] for record in steps[32:35]] == [[32, 33], [34, 35], [35, 36]]
    assert len(steps) == 59


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_before_during_and_after_a_rollback_come_out_as_recorded(
    tmp_path: Path, foreign: bool, accumulate: int
) -> None:
    job = nan_job(BAD)
    job.loader = Counted() if foreign else job.loader  # type: ignore[assignment]

    def step(batch: Any) -> Any:
        return [job.step(one) for one in (batch if accumulate > 1 else [batch])][-1]

    with job.run(
        tmp_path / "run",
        steps=50 // accumulate,
        train_step=step,
        accumulate=accumulate,
        options=RunOptions(save_every=5, keep=20, handle_signals=False),
        on_finding={"nan": "rollback"},
        rollback=RollbackOptions(rate_scale=0.5),
    ) as run:
        run.train()
    (decision,) = run.log.events("rollback")
    for begin in range(0, 50 // accumulate - 6, 5):
        found = run.replay(range(begin, begin + 6))
        assert (found.began_at, found.differs_at, found.rate_differs_at) == (begin, None, None), decision


def test_stop_stops_and_says_why(tmp_path: Path) -> None:
    job = nan_job(BAD)
    with (
        pytest.raises(RunStoppedError, match="from step 33"),
        job.run(tmp_path / "run", options=OPTIONS, on_finding={"nan": "stop"}) as run,
    ):
        train(job, run)
    assert RunLog(tmp_path / "run").events("stopped")[0]["finding"]["failure"] == "nan"


@pytest.mark.parametrize(
    ("rules", "failure", "severity", "action"),
    [
        ("alert", "spike", "warning", Action.ALERT),
        ("alert", "spike", "info", Action.LOG),
        ({"nan": "rollback"}, "nan", "critical", Action.ROLLBACK),
        ({"nan": "rollback"}, "spike", "critical", Action.LOG),
        ({"critical": "stop", "spike/critical": "rollback"}, "spike", "critical", Action.ROLLBACK),
        ({"critical": "stop", "spike": "alert"}, "spike", "critical", Action.ALERT),
        ({"*": "pause"}, "plateau", "info", Action.PAUSE),
    ],
)
def test_the_most_specific_rule_decides(rules: Any, failure: str, severity: str, action: Action) -> None:
    assert Policy(rules).action(failure, severity) is action


@pytest.mark.parametrize("rules", ["explode", {"nan": "cry"}, {"": "log"}, {"nan/severe": "log"}])
def test_rules_that_say_nothing_are_refused(rules: Any) -> None:
    with pytest.raises(ConfigError):
        Policy(rules)
