"""A program whose optimizer or scheduler is no longer the one the run was started with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.run.job import Job, make_job, train
from torch.optim import lr_scheduler

from holdfast.errors import RunMismatchError


def job_with(parameters: Callable[[Job], list[dict[str, object]]]) -> Job:
    job = make_job()
    job.optimizer = torch.optim.AdamW(parameters(job), lr=1e-2)
    job.scheduler = lr_scheduler.StepLR(job.optimizer, 9, gamma=0.7)
    return job


def two_groups(first: int) -> Callable[[Job], list[dict[str, object]]]:
    def parameters(job: Job) -> list[dict[str, object]]:
        every = list(job.model.parameters())
        return [{"params": every[:first]}, {"params": every[first:]}]

    return parameters


def all_but(left_out: int) -> Callable[[Job], list[dict[str, object]]]:
    return lambda job: [{"params": list(job.model.parameters())[: 4 - left_out]}]


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)])
def test_an_optimizer_of_other_parameters_is_refused_naming_them(tmp_path: Path, before: int, after: int) -> None:
    """A layer left out of the optimizer was no longer trained, and nothing said so."""
    job = job_with(all_but(before))
    train(job, job.run(tmp_path / "run", steps=6))
    with pytest.raises(RunMismatchError, match="different parameters") as caught:
        job_with(all_but(after)).run(tmp_path / "run", steps=9).resume()
    assert "3.weight" in str(caught.value)
    assert "0.weight" not in str(caught.value)


def test_parameters_that_moved_to_another_group_are_refused(tmp_path: Path) -> None:
    job = job_with(two_groups(2))
    train(job, job.run(tmp_path / "run", steps=6))
    with pytest.raises(RunMismatchError, match="different parameters") as caught:
        job_with(two_groups(3)).run(tmp_path / "run", steps=9).resume()
    assert "3.weight" in str(caught.value)


def test_parameters_may_be_given_in_another_order(tmp_path: Path) -> None:
    job = make_job()
    train(job, job.run(tmp_path / "run", steps=6))
    again = job_with(lambda job: [{"params": list(job.model.parameters())[::-1]}])
    train(again, again.run(tmp_path / "run", steps=9))
    whole = make_job()
    train(whole, whole.run(tmp_path / "whole", steps=9))
    assert again.hash == whole.hash


def test_a_scheduler_of_another_kind_is_refused_naming_both(tmp_path: Path) -> None:
    """torch merges the state of any scheduler into any other, and the learning rate jumps."""
    job = make_job()
    train(job, job.run(tmp_path / "run", steps=6))
    other = make_job()
    other.scheduler = lr_scheduler.CosineAnnealingLR(other.optimizer, 20)
    with pytest.raises(RunMismatchError, match="scheduler") as caught:
        other.run(tmp_path / "run", steps=9).resume()
    assert "StepLR" in str(caught.value)
    assert "CosineAnnealingLR" in str(caught.value)
