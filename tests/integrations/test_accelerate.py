"""The stream in an Accelerate loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hfast
from holdfast.errors import ConfigError, StateError
from holdfast.integrations.carried import Carried, carried_in

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own deprecations are not ours to fail on


def make_loader(**options: Any) -> hfast.StreamingShardLoader:
    dataset = hfast.StreamDataset(hfast.ArraySource({"index": np.arange(40)}), name="a", seed=2)
    return hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=4, **options))


def test_the_loader_goes_through_prepare_unchanged() -> None:
    loader = make_loader()
    assert accelerate.Accelerator(cpu=True).prepare(loader) is loader


def test_save_state_and_load_state_carry_the_stream(tmp_path: Path) -> None:
    from holdfast.integrations.accelerate import prepare

    accelerator = accelerate.Accelerator(cpu=True)
    batches = prepare(accelerator, make_loader())
    iterator = iter(batches)
    for _ in range(5):
        next(iterator)
    accelerator.save_state(str(tmp_path / "saved"))
    assert carried_in(tmp_path) == [Carried("accelerate", str(tmp_path / "saved"), 5)]
    expected = next(iterator)["index"].tolist()
    again = accelerate.Accelerator(cpu=True)
    resumed = prepare(again, make_loader())
    again.load_state(str(tmp_path / "saved"))
    assert next(iter(resumed))["index"].tolist() == expected
    with pytest.raises(ConfigError, match="skipping batches now would lose them"):
        accelerate.skip_first_batches(resumed, 5)


@pytest.mark.parametrize(
    ("others", "error", "said"),
    [
        (0, RuntimeError, "does not match the number of registered objects"),  # Accelerate's own check
        (1, StateError, "holds no stream state"),
    ],
)
def test_a_checkpoint_without_a_stream_state_is_refused(
    others: int, error: type[Exception], said: str, tmp_path: Path
) -> None:
    """Accelerate knows registered objects by their number only: another one's state must not pass for the stream's."""
    import torch

    from holdfast.integrations.accelerate import prepare

    before = accelerate.Accelerator(cpu=True)
    for _ in range(others):
        optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
        before.register_for_checkpointing(torch.optim.lr_scheduler.StepLR(optimizer, 1))
    before.save_state(str(tmp_path))
    again = accelerate.Accelerator(cpu=True)
    prepare(again, make_loader())
    with pytest.raises(error, match=said):
        again.load_state(str(tmp_path))


@pytest.mark.parametrize("automatic", [True, False])
def test_a_checkpoint_that_was_never_finished_is_passed_over(automatic: bool, tmp_path: Path) -> None:
    """Accelerate itself would take the torn one at every start, and refuse to save under its number."""
    from holdfast.integrations.accelerate import newest_checkpoint, prepare

    def begin() -> tuple[Any, Any]:
        options = {"project_dir": str(tmp_path), "automatic_checkpoint_naming": automatic}
        project = accelerate.utils.ProjectConfiguration(**options)
        accelerator = accelerate.Accelerator(cpu=True, project_config=project)
        return accelerator, prepare(accelerator, make_loader())

    folder = tmp_path / "checkpoints"
    accelerator, batches = begin()
    iterator = iter(batches)
    for number in range(3):
        next(iterator)
        accelerator.save_state(None if automatic else str(folder / f"checkpoint_{number}"))
    (folder / "checkpoint_2" / "custom_checkpoint_0.pkl").unlink()
    assert newest_checkpoint(folder) == str(folder / "checkpoint_1")
    accelerator, batches = begin()
    accelerator.load_state(None if automatic else newest_checkpoint(folder))
    assert next(iter(batches))["index"].tolist() == make_loader().batch_at(2)["index"].tolist()
    accelerator.save_state(None if automatic else str(folder / "checkpoint_2"))
    newest = newest_checkpoint(folder)
    assert newest == str(folder / ("checkpoint_3" if automatic else "checkpoint_2"))
    assert carried_in(tmp_path) == [Carried("accelerate", newest, 3)]


def test_where_no_checkpoint_was_finished_the_doctor_is_told_so(tmp_path: Path) -> None:
    from holdfast.integrations.accelerate import prepare

    accelerator = accelerate.Accelerator(cpu=True)
    next(iter(prepare(accelerator, make_loader())))
    accelerator.save_state(str(tmp_path / "saved"))
    (tmp_path / "saved" / "holdfast_finished.json").unlink()  # the job was killed before all had written
    (found,) = carried_in(tmp_path)
    assert found.batches is None
    assert "incomplete" in found.fault


def test_a_checkpoint_that_is_saved_over_is_not_whole_until_that_is_done(tmp_path: Path) -> None:
    from holdfast.integrations.accelerate import newest_checkpoint, prepare

    accelerator = accelerate.Accelerator(cpu=True)
    batches = prepare(accelerator, make_loader())
    accelerator.save_state(str(tmp_path / "last"))
    assert newest_checkpoint(tmp_path) == str(tmp_path / "last")

    def killed() -> dict[str, Any]:
        raise KeyboardInterrupt

    vars(batches)["state_dict"] = killed
    with pytest.raises(KeyboardInterrupt):
        accelerator.save_state(str(tmp_path / "last"))
    assert newest_checkpoint(tmp_path) is None


@pytest.mark.parametrize("options", [{"per_epoch": True}, {"epochs": 1}, {}], ids=["epochs", "finite", "endless"])
def test_accumulate_makes_a_step_at_the_end_of_an_epoch_as_with_a_loader_of_torchs(
    options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the last batches of an epoch would count for the next one, and those of the last for none."""
    import torch

    from holdfast.integrations.accelerate import prepare

    def steps_of(make: Any) -> list[bool]:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
        model = accelerator.prepare(torch.nn.Linear(1, 1))
        made, batches = [], make(accelerator)
        for _ in range(2 if options == {"per_epoch": True} else 1):
            for batch in batches:
                with accelerator.accumulate(model):
                    made.append(accelerator.sync_gradients)
                    assert len(accelerator.gather_for_metrics(batch["index"])) == 4
                if len(made) == 20:
                    break
        accelerator.save_state(str(tmp_path / "saved"))
        return made

    made = steps_of(lambda accelerator: prepare(accelerator, make_loader(**options)))
    if not options:
        assert made == [number % 3 == 2 for number in range(20)]
        assert "between two optimizer steps" in caplog.text
        return
    assert "between two optimizer steps" not in caplog.text
    samples: Any = [{"index": number} for number in range(40)]
    assert made == steps_of(lambda accelerator: accelerator.prepare(torch.utils.data.DataLoader(samples, batch_size=4)))


def test_a_loop_that_skips_batches_by_hand_gets_what_it_asks_for() -> None:
    from holdfast.integrations.accelerate import prepare

    batches = prepare(accelerate.Accelerator(cpu=True), make_loader())
    expected = make_loader().batch_at(3)["index"].tolist()
    assert next(iter(accelerate.skip_first_batches(batches, 3)))["index"].tolist() == expected


def test_a_recorded_loop_that_is_not_closed_still_has_its_last_step(tmp_path: Path) -> None:
    """In a fork, which runs what is to be run at exit: a program of its own would import everything again."""
    import atexit
    import os

    import torch

    from holdfast.integrations.loop import TrainingStream
    from holdfast.run import RunLog

    child = os.fork()
    if not child:
        status = 1
        try:
            atexit._clear()
            model = torch.nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            stream = TrainingStream(make_loader(), folder=tmp_path / "run", model=model, optimizer=optimizer)
            for batch in stream:
                loss = model(batch["index"].float()[:, None]).mean()
                loss.backward()
                optimizer.step()
                stream.step(loss)
                if stream.step_number == 3:
                    break
            atexit._run_exitfuncs()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    log = RunLog(tmp_path / "run")
    assert [record["step"] for record in log.steps()] == [0, 1, 2]
    assert len(log.events("end")) == 1
