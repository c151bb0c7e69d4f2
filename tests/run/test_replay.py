"""A replay has the recorded bits, notices a machine that computed wrongly, and leaves the run as it is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run.suspects import AT, STEPS, flip_bit, trained
from tests.run.test_rehearsal import files_of, state_of
from typer.testing import CliRunner

from holdfast.cli.main import build_app
from holdfast.errors import ConfigError, HoldfastError, RunError
from holdfast.run.replay import compare
from holdfast.run.run_log import Record
from holdfast.run.step_line import bits_of


def test_a_clean_replay_has_the_recorded_bits_and_touches_nothing(tmp_path: Path) -> None:
    job, run, _ = trained(tmp_path / "run")
    state, files = state_of(job), files_of(tmp_path / "run")
    found = run.replay(range(AT, STEPS))
    assert found.differs_at is None
    assert found.bitwise
    assert (found.began_at, len(found.steps), found.steps_made) == (20, STEPS - 20, STEPS - 20)
    assert (state_of(job), files_of(tmp_path / "run")) == (state, files)


def test_a_flipped_bit_is_noticed_at_its_step(tmp_path: Path) -> None:
    _, run, _ = trained(tmp_path / "run", fault=lambda job: flip_bit(next(job.model.parameters()), 3, 22))
    found = run.replay(range(22, STEPS))
    assert (found.differs_at, found.bitwise, found.rate_differs_at) == (AT, True, None)


def test_where_replays_differ_from_each_other_the_tolerance_is_measured(tmp_path: Path) -> None:
    job, run, _ = trained(tmp_path / "run")
    exact = run._train_step
    assert exact is not None
    generator = torch.Generator()
    generator.seed()

    def noisy(batch: Any) -> Any:
        with torch.no_grad():  # a machine that rounds differently every time
            for parameter in job.model.parameters():
                parameter.mul_(1 + 1e-6 * torch.randn(parameter.shape, generator=generator))
        return exact(batch)

    run._train_step = noisy
    found = run.replay(range(AT, STEPS))
    assert not found.bitwise
    assert 0 < found.tolerance < 0.01
    assert found.differs_at is None


def test_a_difference_far_beyond_the_null_is_still_noticed() -> None:
    def record(step: int, loss: float) -> dict[str, Any]:
        return {"step": step, "loss": loss, "loss_bits": loss.hex(), "lr": 0.1}

    recorded = [record(0, 1.0), record(1, 1.5)]
    made, again = [record(0, 1.000001), record(1, 1.000002)], [record(0, 1.000003), record(1, 1.000001)]
    assert compare(recorded, made, [again]).differs_at == 1
    assert compare([record(0, 1.0), record(1, float("nan"))], made, [again]).differs_at == 1


def test_steps_that_were_never_made_or_make_no_range_are_refused(tmp_path: Path) -> None:
    _, run, _ = trained(tmp_path / "run")
    with pytest.raises(RunError, match="has not made"):
        run.replay(range(AT, STEPS + 2))
    with pytest.raises(RunError, match="has not made"):
        run.replay(range(AT, 10**20))  # and does not begin to make them
    with pytest.raises(ConfigError):
        run.replay(range(AT, AT))


PROGRAM = """
from pathlib import Path
from tests.run.job import make_job
from tests.run.suspects import OPTIONS, masked_step, values_with

def build(folder):
    job = make_job(values=values_with(1)[0], batch_size=8)
    job.model.get_submodule("1").p = 0.0
    return job.run(Path(folder), train_step=masked_step(job), options=OPTIONS, monitor=False)
"""


def test_the_commands_replay_blame_and_prove_through_a_program(tmp_path: Path) -> None:
    _, _, (guilty,) = trained(tmp_path / "run", poisoned=1)
    (tmp_path / "train.py").write_text(PROGRAM)
    app, runner = build_app(), CliRunner()
    program = ["--program", f"{tmp_path / 'train.py'}:build"]
    run = str(tmp_path / "run")
    done = runner.invoke(app, ["replay", run, "--steps", f"{AT}:{STEPS}", *program, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["differs_at"] is None
    done = runner.invoke(app, ["blame", run, "--step", str(AT), *program])
    assert "blamed" in done.output, done.output
    done = runner.invoke(app, ["prove", run, "--step", str(AT), *program, "--json"])
    told = json.loads(done.output)
    assert (told["verdict"], told["samples"]) == ("these samples", {"numbers": [guilty]})
    for wrong in (["--steps", "9:3", *program], ["--steps", "20:22", "--program", "nowhere.py:build"]):
        assert isinstance(runner.invoke(app, ["replay", run, *wrong]).exception, HoldfastError)


@pytest.mark.parametrize(
    "program",
    ["def build(folder):\n    raise ValueError('oh')\n", "def build(one, two):\n    pass\n", "import nowhere_at_all\n"],
)
def test_a_program_that_fails_is_bad_input_and_no_difference(tmp_path: Path, program: str) -> None:
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "run.json").write_text("{}")
    arguments = ["replay", str(tmp_path), "--steps", "3:5", "--program", f"{tmp_path / 'train.py'}:build"]
    error = CliRunner().invoke(build_app(), arguments).exception
    assert isinstance(error, ConfigError)
    assert "the program failed" in str(error)


def test_a_step_that_was_left_out_is_not_a_step_with_another_learning_rate() -> None:
    """A flipped bit that overflows makes a gradient scaler leave the optimizer's step out: the machine's fault."""
    made: Record = {"step": 3, "batches": [3, 4], "loss": 1.0, "loss_bits": bits_of(1.0), "lr": 0.1}
    left_out = {**made, "loss": math.nan, "loss_bits": bits_of(math.nan)}
    del left_out["lr"]
    for recorded, again in ((left_out, made), (made, left_out)):
        found = compare([recorded], [again])
        assert (found.differs_at, found.rate_differs_at) == (3, None)
    assert compare([made], [{**made, "lr": 0.2}]).rate_differs_at == 3
