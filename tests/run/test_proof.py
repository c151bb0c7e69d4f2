"""Blame names the samples behind a jump, a proof says whose fault it was, and both may say: nobody's."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.run.job import Job, make_job
from tests.run.suspects import AT, OPTIONS, STEPS, classifier, flip_bit, masked_step, trained, values_with
from tests.run.test_rehearsal import files_of, state_of
from torch import nn

from holdfast.errors import ConfigError, OrderError, RunError, RunStoppedError
from holdfast.run import RollbackOptions
from holdfast.run.blame import BlameOptions
from holdfast.run.preview import preview
from holdfast.run.proof import Culprit, ProofOptions


@pytest.mark.parametrize("heeds_masks", [True, False])
@pytest.mark.parametrize("poisoned", [1, 3])
def test_the_poisoned_samples_are_blamed_and_nobody_else(tmp_path: Path, poisoned: int, heeds_masks: bool) -> None:
    job, run, guilty = trained(tmp_path / "run", poisoned=poisoned, heeds_masks=heeds_masks)
    state, files = state_of(job), files_of(tmp_path / "run")
    found = run.blame(AT)
    assert sorted(suspect.index for suspect in found.blamed) == guilty
    assert sorted(suspect.index for suspect in found.ranked[:poisoned]) == guilty, "the furthest out come first"
    assert found.heeds_masks == heeds_masks
    assert found.explained is not None
    assert found.explained > 0.9
    assert (state_of(job), files_of(tmp_path / "run")) == (state, files)


def test_a_sample_far_out_of_its_range_is_blamed_even_where_its_batch_stays_within_its_own(tmp_path: Path) -> None:
    _, run, guilty = trained(tmp_path / "run", poisoned=1, scale=8.0, robust=True)
    found = run.blame(AT)
    assert [suspect.index for suspect in found.blamed] == guilty
    assert found.excess < BlameOptions().min_excess
    assert found.explained is None  # there is no excess to explain
    least = 2 * found.blamed[0].loss / run.log.steps()[0]["loss"]
    assert run.blame(AT, options=BlameOptions(far_share=least)).nobody  # next to what the run began with it is nothing


def test_nobody_is_blamed_in_a_healthy_window(tmp_path: Path) -> None:
    _, run, _ = trained(tmp_path / "run")
    for step in range(21, STEPS - 3, 3):
        assert run.blame(step).nobody


def test_hard_samples_of_a_model_that_has_learnt_are_not_blamed(tmp_path: Path) -> None:
    """Their losses have long tails: at step 154 one lies twice as far out as any of the samples before."""
    run = classifier(tmp_path / "run")
    with run:
        run.train(steps=162)
    assert run.blame(154).nobody


def test_a_model_that_refuses_a_batch_of_one_is_measured_beside_others(tmp_path: Path) -> None:
    values, guilty = values_with(2)
    job = make_job(values=values, batch_size=8)
    job.model.insert(1, nn.BatchNorm1d(12))  # type: ignore[operator]
    with job.run(tmp_path / "run", train_step=masked_step(job), options=OPTIONS, monitor=False) as run:
        run.train(steps=STEPS)
    state = state_of(job)
    found = run.prove(AT)
    assert found.verdict is Culprit.SAMPLES, found.reason
    assert set(guilty) <= set(found.samples["numbers"])
    assert sorted(suspect.index for suspect in run.blame(AT).blamed) == guilty
    assert state_of(job) == state


def test_poisoned_samples_are_proven_within_seven_times_the_steps(tmp_path: Path) -> None:
    _, run, guilty = trained(tmp_path / "run", poisoned=2)
    found = run.prove(AT)
    assert (found.verdict, found.samples) == (Culprit.SAMPLES, {"numbers": guilty})
    assert found.as_it_was == found.recorded
    assert found.cure == f"loader.mask(samples={{'numbers': {guilty}}})"
    k = found.steps[-1] + 1 - 20  # from the checkpoint on
    assert found.steps_made + -(-found.samples_measured // 8) <= 7 * k


def test_suspects_are_guilty_only_where_random_samples_do_not_help_as_much(tmp_path: Path) -> None:
    _, run, _ = trained(tmp_path / "run", poisoned=2)
    found = run.prove(AT, options=ProofOptions(max_random_share=-1.0))  # as if no draw were unlike B
    assert (found.verdict, found.samples, found.cure) == (Culprit.UNKNOWN, {}, None)
    assert len(found.without_random) == 3


def _flip_gradient(job: Job) -> None:
    parameter = next(job.model.parameters())

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        handle.remove()
        gradient = gradient.clone()
        flip_bit(gradient, 5, 29)
        return gradient

    handle = parameter.register_hook(hook)  # type: ignore[no-untyped-call]


def _flip_moment(job: Job) -> None:
    state = job.optimizer.state[next(job.model.parameters())]
    flip_bit(state["exp_avg"], 5, 29)


@pytest.mark.parametrize(
    "fault", [lambda job: flip_bit(next(job.model.parameters()), 5, 29), _flip_gradient, _flip_moment]
)
def test_flipped_bits_are_the_machines_fault(tmp_path: Path, fault: Callable[[Job], None]) -> None:
    _, run, _ = trained(tmp_path / "run", fault=fault)
    found = run.prove(AT + 1)
    assert (found.verdict, found.same_host, found.bitwise) == (Culprit.MACHINE, True, True), found.reason


def test_a_learning_rate_that_is_too_high_is_not_put_down_to_data(tmp_path: Path) -> None:
    _, run, _ = trained(tmp_path / "run", rate_scale=300.0)
    assert run.prove(AT + 1).verdict is Culprit.MODEL


@pytest.mark.parametrize("late", [0, 2])
def test_a_sample_that_a_jump_of_the_learning_rate_magnifies_is_not_at_fault(tmp_path: Path, late: int) -> None:
    """Without the sample that pulls hardest at the raised rate most of the excess is gone, and it is innocent."""
    _, run, _ = trained(tmp_path / "run", poisoned=1, scale=3.0, rate_scale=100.0)
    found = run.prove(AT + 1 + late)
    assert (found.verdict, "learning rate" in found.reason) == (Culprit.MODEL, True), found.reason


def test_a_changed_program_is_not_the_machines_fault(tmp_path: Path) -> None:
    _, run, _ = trained(tmp_path / "run", poisoned=1)
    job = make_job(values=values_with(1)[0], batch_size=8)
    job.model.get_submodule("1").p = 0.0  # type: ignore[assignment]
    step = masked_step(job)

    def clipped(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return 0.5 * step(batch)

    changed = job.run(tmp_path / "run", train_step=clipped, options=OPTIONS, monitor=False)
    found = changed.prove(AT)
    assert (found.verdict, found.differs_at) == (Culprit.UNKNOWN, 20), found.reason
    assert "program" in found.reason
    run.close()


def test_a_fault_in_the_first_step_after_a_checkpoint_is_still_the_machines(tmp_path: Path) -> None:
    _, run, _ = trained(tmp_path / "run", fault=lambda job: flip_bit(next(job.model.parameters()), 5, 29), at=20)
    found = run.prove(21)
    assert (found.verdict, found.differs_at) == (Culprit.MACHINE, 20), found.reason


@pytest.mark.parametrize("option", ["before", "horizon", "reference"])
def test_a_window_without_end_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="at most 256 steps"):
        BlameOptions(**{option: 99_999})


def test_innocent_suspects_are_acquitted(tmp_path: Path) -> None:
    job, run, guilty = trained(tmp_path / "run", poisoned=1)
    innocent = next(s.index for s in job.loader.samples_in(AT) if s.index not in guilty)
    assert run.prove(AT, samples={"numbers": [innocent]}).verdict is Culprit.MODEL
    with pytest.raises(OrderError, match="not in these steps"):
        run.prove(AT, samples={"numbers": [job.loader.samples_in(2)[0].index]})


def test_a_rollback_with_a_proof_leaves_out_the_guilty_and_nothing_else(tmp_path: Path) -> None:
    values, guilty = values_with(2, scale=float("nan"))
    job = make_job(values=values, batch_size=8)
    job.model.get_submodule("1").p = 0.0  # type: ignore[assignment]
    with job.run(
        tmp_path / "run",
        train_step=masked_step(job),
        options=OPTIONS,
        on_finding={"nan": "rollback"},
        rollback=RollbackOptions(cure="prove"),
    ) as run:
        run.train(steps=AT + 3)
    (decision,) = run.log.events("rollback")
    # A mask is not enough here: what is not a number reaches the gradient through a mask, as 0 x NaN.
    assert decision["cure"] == {"skip_samples": {"numbers": guilty}}
    losses = [record["loss"] for record in run.log.steps()]
    assert len(losses) == AT + 3
    assert all(math.isfinite(loss) for loss in losses)


def test_a_rollback_goes_on_where_nothing_can_be_proven(tmp_path: Path) -> None:
    values, _ = values_with(2, scale=float("nan"))
    job = make_job(values=values, batch_size=8)
    step = masked_step(job)

    def refusing(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if len(batch["x"]) < 8:
            raise ValueError("eight samples, please")
        return step(batch)

    with (
        job.run(
            tmp_path / "run",
            train_step=refusing,
            options=OPTIONS,
            on_finding={"nan": "rollback"},
            rollback=RollbackOptions(cure="prove", max_rollbacks=1),
        ) as run,
        pytest.warns(RuntimeWarning, match="nothing was proven, and nothing is skipped: eight samples"),
        pytest.raises(RunStoppedError, match="maximum number of rollbacks"),
    ):
        run.train(steps=AT + 3)
    assert [event["cure"] for event in run.log.events("rollback")] == [{}]


def test_steps_that_were_not_made_or_have_no_past_are_refused(tmp_path: Path) -> None:
    _, run, _ = trained(tmp_path / "run")
    for step in (STEPS, 3):
        with pytest.raises(RunError):
            run.prove(step)


def test_an_answer_that_cannot_be_kept_is_given_all_the_same(tmp_path: Path) -> None:
    _, run, chosen = trained(tmp_path / "run", poisoned=1)
    (tmp_path / "run" / "investigations").write_text("in the way of the folder, as a disk that is full would be")
    with pytest.warns(RuntimeWarning, match="could not be stored"):
        assert [suspect.index for suspect in run.blame(AT).blamed] == chosen


def test_a_preview_is_short_printable_and_on_one_line() -> None:
    shown = preview({"text": ["a\x1b[31m\n" + "x" * 500], "ids": torch.arange(900).reshape(1, -1), "metrics": 3}, 0)
    assert sorted(shown) == ["ids", "text"]
    assert all(len(text) <= 80 and text.isprintable() for text in shown.values())
