"""What a program does around its run: it changes directory, replaces NumPy's generator, or expands its buffers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.run.job import Job, make_job, train

from holdfast.run import RunLog
from holdfast.run.investigations import keep_investigation

generators: Any = np.random
"""NumPy's type stubs do not list the functions that exchange its global generator."""


@pytest.fixture
def _own_generator() -> Iterator[None]:
    before = generators.get_bit_generator()
    yield
    generators.set_bit_generator(before)


def test_a_program_that_changes_its_directory_keeps_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    job = make_job()
    run = job.run(Path("runs/one"), steps=12)
    for batch in run:
        if run.step_number == 2:
            monkeypatch.chdir(tmp_path / "elsewhere")
        run.step(loss=job.step(batch))
    assert len(run.log.steps()) == 12
    assert [event["step"] for event in RunLog(tmp_path / "runs/one").events("checkpoint")] == [0, 5, 10, 12]
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937"])
@pytest.mark.usefixtures("_own_generator")
def test_any_generator_of_numpy_continues_where_it_was(tmp_path: Path, kind: str) -> None:
    def draw(name: str, stop: int) -> list[float]:
        generators.set_bit_generator(getattr(np.random, kind)(3))
        job = make_job()
        run = job.run(tmp_path / name, steps=stop)
        drawn = []
        for batch in run:
            drawn.append(float(np.random.normal()))
            run.step(loss=job.step(batch))
        return drawn

    assert draw("parts", 7) + draw("parts", 12) == draw("whole", 12)


@pytest.mark.usefixtures("_own_generator")
def test_a_run_continues_with_the_kind_of_generator_that_it_was_saved_with(tmp_path: Path) -> None:
    generators.set_bit_generator(np.random.PCG64(3))
    job = make_job()
    train(job, job.run(tmp_path / "run", steps=5))
    drawn = np.random.normal()
    generators.set_bit_generator(np.random.MT19937(3))
    job = make_job()
    job.run(tmp_path / "run", steps=6).resume()
    assert np.random.normal() == drawn


def with_expanded_buffer(value: float) -> Job:
    job = make_job()
    job.model.register_buffer("scale", torch.tensor([value]).expand(4, 5))
    return job


def test_a_model_with_an_expanded_buffer_continues(tmp_path: Path) -> None:
    """All checkpoints of such a run were saved, and none of them could be loaded."""
    job = with_expanded_buffer(2.0)
    train(job, job.run(tmp_path / "run", steps=7))
    again = with_expanded_buffer(3.0)
    train(again, again.run(tmp_path / "run", steps=12))
    assert torch.equal(again.model.get_buffer("scale"), torch.full((4, 5), 2.0))
    whole = with_expanded_buffer(2.0)
    train(whole, whole.run(tmp_path / "whole", steps=12))
    assert again.hash == whole.hash


def test_a_model_with_an_expanded_buffer_can_be_replayed(tmp_path: Path) -> None:
    job = with_expanded_buffer(2.0)
    with job.run(tmp_path / "run", train_step=job.step) as run:
        run.train(steps=7)
        assert run.replay(range(5, 7)).differs_at is None


def test_a_run_whose_checkpoints_are_gone_says_that_it_starts_over(tmp_path: Path) -> None:
    job = make_job()
    train(job, job.run(tmp_path / "run", steps=7))
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    again = make_job()
    with pytest.warns(RuntimeWarning, match="none is left: the run starts over at step 0"):
        train(again, again.run(tmp_path / "run", steps=7))
    (note,) = RunLog(tmp_path / "run").events("start")[-1]["notes"]
    assert note.startswith("a checkpoint was saved at step 7")
    assert again.hash == job.hash


def test_fresh_moves_what_was_found_about_the_old_run_aside_too(tmp_path: Path) -> None:
    """The page showed the suspects of the old run with the findings of the new one."""
    job = make_job()
    train(job, job.run(tmp_path / "run", steps=6))
    keep_investigation(tmp_path / "run", "blame", 3, {"step": 3})
    (tmp_path / "run" / "PAUSED").touch()
    make_job().run(tmp_path / "run", fresh=True).resume()
    (earlier,) = (tmp_path / "run" / "earlier").iterdir()
    assert {"investigations", "PAUSED"} <= {path.name for path in earlier.iterdir()}
    assert not {"investigations", "PAUSED"} & {path.name for path in (tmp_path / "run").iterdir()}
