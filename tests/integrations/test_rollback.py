"""A spoilt batch under every trainer: found, rolled back, left out, and trained on to the end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations import poisoned
from tests.integrations.poisoned import SAVE_EVERY, SPOILT_STEP, STEPS, Model

from holdfast.errors import ConfigError, StateError
from holdfast.integrations.restart import RESTART_CODE, RESUME_FILE, resume_path
from holdfast.integrations.trainer_record import Recording
from holdfast.run import RollbackOptions, RunLog

pytestmark = pytest.mark.filterwarnings("ignore")  # the trainers' own deprecations are not ours to fail on
ROLLBACK = RollbackOptions(after=2)


def train_transformers(folder: Path, model: Model, *, clean: bool = False) -> None:
    transformers = pytest.importorskip("transformers")
    from holdfast.integrations.transformers import attach

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=STEPS,
        save_steps=SAVE_EVERY,
        learning_rate=1e-2,
        logging_steps=STEPS,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = transformers.Trainer(model=model, args=arguments)
    attach(trainer, poisoned.make_loader(clean=clean), folder=folder / "run", on_finding="rollback", rollback=ROLLBACK)
    trainer.train()


def make_lightning(folder: Path, model: Model) -> tuple[Any, Any]:
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.callbacks import ModelCheckpoint

    from holdfast.integrations.lightning import HoldfastCallback

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss: torch.Tensor = self.inner(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        callbacks=[
            HoldfastCallback(folder / "run", on_finding="rollback", rollback=ROLLBACK),
            ModelCheckpoint(folder / "out", every_n_train_steps=SAVE_EVERY, save_top_k=-1, filename="{step}"),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return trainer, Module()


def train_lightning(folder: Path, model: Model, *, clean: bool = False) -> None:
    trainer, module = make_lightning(folder, model)
    from holdfast.integrations.lightning import fit

    fit(trainer, module, poisoned.make_loader(clean=clean))


def train_accelerate(folder: Path, model: Model, *, clean: bool = False) -> None:
    accelerate = pytest.importorskip("accelerate")
    from holdfast.integrations.accelerate import prepare

    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    with prepare(
        accelerator,
        poisoned.make_loader(clean=clean),
        folder=folder / "run",
        model=model,
        optimizer=optimizer,
        on_finding="rollback",
        rollback=ROLLBACK,
    ) as batches:
        for batch in batches:
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            batches.step(loss)
            if batches.step_number % SAVE_EVERY == 0:
                accelerator.save_state(str(folder / "out" / f"step-{batches.step_number}"))
            if batches.step_number == STEPS:
                break


@pytest.mark.parametrize("train", [train_transformers, train_lightning, train_accelerate])
def test_a_spoilt_batch_is_left_out_inside_the_trainer(train: Callable[[Path, Model], None], tmp_path: Path) -> None:
    model, loader = Model(), poisoned.make_loader()
    train(tmp_path, model)
    log = RunLog(tmp_path / "run")
    (decision,) = log.events("rollback")
    to, (first, stop) = decision["to"], decision["skipped"]
    assert to == 80
    assert first <= SPOILT_STEP < stop
    assert [event["step"] for event in log.events("rolled_back")] == [to]
    before = [loader.batch_at(step)["index"].tolist() for step in range(decision["step"])]
    left = [step for step in range(to, STEPS + stop) if not first <= step < stop][: STEPS - to]
    after = [loader.batch_at(step)["index"].tolist() for step in left]
    assert model.seen == before + after
    records = log.steps()
    assert [record["step"] for record in records] == list(range(STEPS))
    assert max(record["loss"] for record in records[to:]) < 100
    assert log.verify() == []
    assert not (tmp_path / "run" / RESUME_FILE).exists(), "a checkpoint was saved since"


class NanAtTheEnd(Model):
    """Breaks down in the last step of its first life."""

    def forward(self, *arguments: Any, **options: Any) -> dict[str, torch.Tensor]:
        made = super().forward(*arguments, **options)
        return {"loss": made["loss"] * (math.nan if len(self.seen) == STEPS else 1.0)}


@pytest.mark.parametrize("train", [train_transformers, train_lightning])
def test_what_the_last_step_shows_is_acted_on(train: Callable[..., None], tmp_path: Path) -> None:
    model = NanAtTheEnd()
    train(tmp_path, model, clean=True)
    log = RunLog(tmp_path / "run")
    (decision,) = log.events("rollback")
    assert decision["step"] == STEPS
    assert math.isfinite(float(model.linear.weight.detach().sum()))
    assert [record["step"] for record in log.steps()] == list(range(STEPS))
    assert all(math.isfinite(record["loss"]) for record in log.steps())


def test_a_loop_that_ends_badly_ends_with_the_code_for_the_launcher(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        train_accelerate(tmp_path, NanAtTheEnd(), clean=True)
    assert ended.value.code == RESTART_CODE
    assert resume_path(tmp_path / "run") == str(tmp_path / "out" / "step-100")


def test_lightnings_own_fit_ends_with_the_code_and_the_file_for_the_launcher(tmp_path: Path) -> None:
    model = Model()
    trainer, module = make_lightning(tmp_path, model)
    with pytest.raises(SystemExit) as ended:
        trainer.fit(module, poisoned.make_loader())
    assert ended.value.code == RESTART_CODE == 75
    said = json.loads((tmp_path / "run" / RESUME_FILE).read_text())
    assert (said["checkpoint"], said["step"]) == (str(tmp_path / "out" / "step=80.ckpt"), 80)
    assert resume_path(tmp_path / "run") == said["checkpoint"]
    assert resume_path(tmp_path) is None
    trainer, module = make_lightning(tmp_path, model)
    with pytest.raises(StateError, match="rolled back, but the trainer continues from another checkpoint"):
        trainer.fit(module, poisoned.make_loader(), ckpt_path=tmp_path / "out" / "step=60.ckpt", weights_only=False)
    model.seen.clear()
    trainer, module = make_lightning(tmp_path, model)
    trainer.fit(module, poisoned.make_loader(), ckpt_path=resume_path(tmp_path / "run"), weights_only=False)
    bad = set(poisoned.spoilt(poisoned.make_loader()))
    assert len(model.seen) == STEPS - 80
    assert not bad & {index for batch in model.seen for index in batch}


def test_checkpoints_of_the_branch_that_is_given_up_are_moved_aside(tmp_path: Path) -> None:
    from holdfast.integrations.restart import abandon, reachable

    paths = {step: tmp_path / f"checkpoint-{step}" for step in (20, 40, 60)}
    for path in paths.values():
        path.mkdir()
    events: list[dict[str, Any]] = [
        {"event": "checkpoint", "step": step, "path": str(path)} for step, path in paths.items()
    ]
    assert reachable(events) == {path: step for step, path in paths.items()}
    assert abandon(reachable(events), after=40, number=1) == ["checkpoint-60"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-20", "checkpoint-40", "rolled-back-001"]
    assert abandon(reachable(events), after=40, number=1) == []
    assert list(reachable([*events, {"event": "rollback", "to": 20}]).values()) == [20]


def test_a_checkpoint_that_was_written_again_holds_its_newest_step_only(tmp_path: Path) -> None:
    from holdfast.integrations.restart import abandon, reachable

    saved = [(3, "step=3.ckpt"), (3, "last.ckpt"), (6, "step=6.ckpt"), (6, "last.ckpt")]
    for _, name in saved:
        (tmp_path / name).touch()
    events = [{"event": "checkpoint", "step": step, "path": str(tmp_path / name)} for step, name in saved]
    assert {path.name: step for path, step in reachable(events).items()} == {name: step for step, name in saved}
    assert sorted(abandon(reachable(events), after=3, number=1)) == ["last.ckpt", "step=6.ckpt"]
    assert [path.name for path in reachable(events)] == ["step=3.ckpt"]


def test_a_proof_is_not_promised_where_steps_cannot_be_made_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs to re-run steps"):
        Recording(folder=tmp_path, rollback=RollbackOptions(cure="prove"))
