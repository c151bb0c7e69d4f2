"""Torchdata's loader in a run: it draws from the training's generator, which a run that continues must not show."""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run.job import QUICK, make_job
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast.run import RunLog

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
Life = tuple[int, list[list[int]]]


def life(folder: Path | None, until: int, *, size: int, shuffle: bool, leave: bool = False, **options: Any) -> Life:
    """Train up to a step, without a run if there is no folder; returns the hash of the parameters and what was seen.

    Args:
        folder: of the run.
        until: the number of steps in all.
        size: samples in the data, of which four make a batch.
        shuffle: an option of the loader.
        leave: leave the loop after the last step, so that nothing is saved there.
        **options: of the run.
    """
    job = make_job()
    rows = [{"x": torch.full((6,), n / 64), "y": torch.zeros(1), "n": n} for n in range(size)]
    loader = StatefulDataLoader(rows, batch_size=4, shuffle=shuffle)
    run = job.run(folder, loader=loader, **options) if folder is not None else None
    seen: list[list[int]] = []
    done = run.resume() if run is not None else 0
    with nullcontext() if run is None else closing(run) if leave else run:
        while done < until:
            for batch in loader if run is None else run:
                seen.append(batch["n"].tolist())
                loss, done = job.step(batch), done + 1
                if run is not None:
                    run.step(loss=loss)
                if done == until and (leave or run is None):
                    break
    return job.hash, seen


@pytest.mark.parametrize("stop", [7, 16, 20])  # within the first pass, at its end, within the second
def test_a_run_that_stopped_after_some_steps_continues_exactly(tmp_path: Path, stop: int) -> None:
    final, seen = life(tmp_path / "whole", 40, size=64, shuffle=True, steps=40)
    _, before = life(tmp_path / "stopped", stop, size=64, shuffle=True, steps=stop)
    after, rest = life(tmp_path / "stopped", 40, size=64, shuffle=True, steps=40)
    assert (after, before + rest) == (final, seen)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_run_continues_exactly_from_before_its_first_batch(tmp_path: Path, shuffle: bool) -> None:
    """The loader begins its first pass when it is asked for its state, and draws for it."""
    expected = life(None, 12, size=64, shuffle=shuffle)
    assert life(tmp_path / "whole", 12, size=64, shuffle=shuffle, steps=12) == expected
    life(tmp_path / "left", 3, size=64, shuffle=shuffle, steps=12, leave=True)
    assert RunLog(tmp_path / "left").events("checkpoint")[-1]["step"] == 0
    assert life(tmp_path / "left", 12, size=64, shuffle=shuffle, steps=12) == expected


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_run_continues_exactly_from_the_end_of_a_pass(tmp_path: Path, shuffle: bool) -> None:
    """A restored loader makes an iterator of the pass that has ended, and one of the next: it may draw only once."""
    options = replace(QUICK, save_every=100)
    final, seen = life(None, 12, size=16, shuffle=shuffle)
    assert life(tmp_path / "whole", 12, size=16, shuffle=shuffle, options=options) == (final, seen)
    life(tmp_path / "left", 8, size=16, shuffle=shuffle, options=options)
    assert life(tmp_path / "left", 12, size=16, shuffle=shuffle, options=options) == (final, seen[8:])
