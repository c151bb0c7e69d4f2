"""Two runs part where they were made to part, and in what they were made to differ."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.run.job import SAMPLES, Job, make_job
from typer.testing import CliRunner

from holdfast.cli.main import build_app
from holdfast.errors import RunError
from holdfast.run import RunLog, RunOptions
from holdfast.run.bisect import Parting, bisect
from holdfast.stream import StreamingShardLoader

STEPS = 12
OPTIONS = RunOptions(save_every=6, stats_every=4, handle_signals=False)
KINDS = ("seed", "data seed", "learning rate", "sample", "weight bit", "gradient bit", "dropout", "skip")


def clean_values() -> Any:
    return np.random.default_rng(0).normal(size=(SAMPLES, 6)).astype(np.float32)


def flip(tensor: torch.Tensor, chance: random.Random) -> None:
    """Flip one bit of a number that matters: the sign, the exponent, or one of the upper half of the mantissa."""
    flat = tensor.detach().view(-1).view(torch.int32)
    place = chance.randrange(flat.numel())
    bits = int(flat[place]) ^ (1 << chance.randrange(12, 30))
    flat[place] = bits


def train(folder: Path, kind: str | None, at: int, chance: random.Random) -> Job:
    """Train with one change at a step."""
    values = clean_values()
    if kind == "sample":
        plan = make_job(values=values)
        changed = chance.choice(plan.loader.samples_in(at)).index
        values[changed, chance.randrange(6)] += 0.5
    job = make_job(
        seed=4 if kind == "seed" else 3, data_seed=6 if kind == "data seed" else 5, values=values, batch_size=4
    )
    run = job.run(folder, options=OPTIONS, steps=STEPS, monitor=False)
    dropout = job.model.get_submodule("1")
    dropout.p = 0.0  # type: ignore[assignment]
    for batch in run:
        if run.step_number == at:
            change(job, kind, chance)
        run.step(loss=job.step(batch))
        if kind == "skip" and run.step_number == at:
            job.loader.skip(steps=[at])
    run.close()
    return job


def change(job: Job, kind: str | None, chance: random.Random) -> None:
    if kind == "learning rate":
        for group in job.optimizer.param_groups:
            group["lr"] *= 1.5
    elif kind == "weight bit":
        flip(next(job.model.parameters()), chance)
    elif kind == "dropout":
        job.model.get_submodule("1").p = 0.5  # type: ignore[assignment]
    elif kind == "gradient bit":
        parameter = list(job.model.parameters())[2]

        def hook(gradient: torch.Tensor) -> torch.Tensor:
            handle.remove()
            gradient = gradient.clone()
            flip(gradient, chance)
            return gradient

        handle: Any = parameter.register_hook(hook)  # type: ignore[no-untyped-call]


EXPECTED = {
    "seed": ("parameters",),
    "data seed": ("data order",),
    "learning rate": ("learning rate",),
    "sample": ("batch content",),
    "weight bit": ("weights", "loss"),
    "gradient bit": ("gradient",),
    "dropout": ("loss",),
    "skip": ("data order",),
}


def part(folder: Path, kind: str, seed: int) -> tuple[Parting, int]:
    chance = random.Random(f"{kind}{seed}")
    at = chance.randrange(2, STEPS)
    at = 0 if kind in ("seed", "data seed") else at
    one = train(folder / "one", None, at, chance)
    other = train(folder / f"other-{kind}-{seed}", kind, at, chance)
    loaders: tuple[StreamingShardLoader, StreamingShardLoader] = (one.loader, other.loader)
    return bisect(RunLog(folder / "one"), RunLog(folder / f"other-{kind}-{seed}"), loaders=loaders), at


@pytest.mark.parametrize("kind", KINDS)
def test_the_step_and_the_component_are_named(tmp_path: Path, kind: str) -> None:
    found, at = part(tmp_path, kind, 0)
    assert (found.step, found.component in EXPECTED[kind]) == (at, True), found


def test_a_rate_is_named_before_the_gradients_that_a_second_optimizer_gets_from_it(tmp_path: Path) -> None:
    for name, scale in (("one", 1.0), ("other", 2.0)):
        job = make_job()
        head = torch.nn.Linear(1, 1)
        second = torch.optim.SGD(head.parameters(), lr=0.1)
        models, optimizers = {"body": job.model, "head": head}, [job.optimizer, second]
        run = job.run(tmp_path / name, model=models, optimizer=optimizers, steps=6, monitor=False)
        for batch in run:
            if run.step_number == 4:
                job.optimizer.param_groups[0]["lr"] *= scale
            loss = job.step(batch)
            second.zero_grad()
            torch.autograd.backward(head(job.model(batch["x"]).detach()).square().mean())
            second.step()
            run.step(loss=loss)
    found = bisect(RunLog(tmp_path / "one"), RunLog(tmp_path / "other"))
    assert (found.step, found.component) == (4, "learning rate"), found


@pytest.mark.soak
def test_a_hundred_injected_changes_are_found(tmp_path: Path) -> None:
    right = 0
    for number in range(100):
        kind = KINDS[number % len(KINDS)]
        found, at = part(tmp_path / str(number), kind, number)
        assert found.step == at, (kind, number, found)
        right += found.component in EXPECTED[kind]
    assert right >= 95


def test_equal_runs_do_not_part_and_a_restart_is_no_parting(tmp_path: Path) -> None:
    chance = random.Random(0)
    train(tmp_path / "a", None, 0, chance)
    for stop in (8, None):
        job = make_job(values=clean_values())
        job.model.get_submodule("1").p = 0.0  # type: ignore[assignment]
        run = job.run(tmp_path / "b", options=OPTIONS, steps=STEPS, monitor=False)
        for batch in run:
            run.step(loss=job.step(batch))
            if run.step_number == stop:
                break
        run.close()
    found = bisect(RunLog(tmp_path / "a"), RunLog(tmp_path / "b"))
    assert (found.step, found.compared, found.unchanged_since) == (None, STEPS, STEPS)


def test_a_flipped_weight_that_no_loss_shows_is_found_by_the_parameters(tmp_path: Path) -> None:
    train(tmp_path / "a", None, 0, random.Random(0))
    job = make_job(values=clean_values())
    job.model.get_submodule("1").p = 0.0  # type: ignore[assignment]
    run = job.run(tmp_path / "b", options=OPTIONS, steps=STEPS, monitor=False)
    with run:
        for batch in run:
            run.step(loss=job.step(batch))
            if run.step_number == STEPS:
                with torch.no_grad():
                    next(job.model.parameters())[0, 0] += 1.0  # after the last step: only the checkpoint shows it
    found = bisect(RunLog(tmp_path / "a"), RunLog(tmp_path / "b"))
    assert (found.step, found.component) == (STEPS, "parameters")


def test_the_command_names_the_step_and_its_exit_code_says_whether_the_runs_part(tmp_path: Path) -> None:
    chance = random.Random(1)
    train(tmp_path / "a", None, 0, chance)
    train(tmp_path / "b", "learning rate", 5, chance)
    app, runner = build_app(), CliRunner()
    done = runner.invoke(app, ["bisect", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    assert done.exit_code == 1
    told = json.loads(done.output)
    assert (told["step"], told["component"]) == (5, "learning rate")
    done = runner.invoke(app, ["bisect", str(tmp_path / "a"), str(tmp_path / "a")])
    assert done.exit_code == 0
    assert "agree" in done.output


def test_runs_without_a_common_step_are_not_said_to_agree(tmp_path: Path) -> None:
    train(tmp_path / "a", None, 0, random.Random(1))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for path in (tmp_path / "b" / "log").iterdir():
        header = path.read_bytes().splitlines(keepends=True)[0]
        path.write_bytes(header)
    done = CliRunner().invoke(build_app(), ["bisect", str(tmp_path / "a"), str(tmp_path / "b")])
    assert isinstance(done.exception, RunError)
    assert "nothing to compare" in str(done.exception)
