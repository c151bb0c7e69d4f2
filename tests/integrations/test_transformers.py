"""The stream inside the Hugging Face Trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import holdfast as hfast
from holdfast.errors import ConfigError, StateError
from holdfast.integrations.carried import Carried, carried_in

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")  # the trainer's own deprecations are not ours to fail on

SAMPLES, BATCH = 50, 4


class Model(torch.nn.Module):
    """Notes every batch it is given, and returns the losses it is told to."""

    def __init__(self, losses: dict[int, float] | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[int]] = []
        self.losses = losses or {}

    def forward(self, index: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.seen.append(index.tolist())
        loss = ((self.weight - index.float() / SAMPLES) ** 2).mean()
        return {"loss": loss * self.losses.get(len(self.seen), 1.0)}


BY_LENGTH: dict[str, Any] = (
    {"train_sampling_strategy": "group_by_length"}
    if hasattr(transformers.TrainingArguments, "train_sampling_strategy")
    else {"group_by_length": True}  # transformers 4
)


def make_loader(**options: Any) -> hfast.StreamingShardLoader:
    dataset = hfast.StreamDataset(hfast.ArraySource({"index": np.arange(SAMPLES)}), name="a", seed=2)
    return hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=BATCH, **options))


def make_trainer(folder: Path, model: Model, **options: Any) -> Any:
    settings = {"max_steps": 12, "save_steps": 3, "logging_steps": 1, "save_total_limit": None, **options}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        **settings,
    )
    return transformers.Trainer(model=model, args=arguments)


def train(
    folder: Path, *, resume: int | None = None, config: dict[str, Any] | None = None, **options: Any
) -> list[list[int]]:
    from holdfast.integrations.transformers import attach

    model = Model()
    trainer = make_trainer(folder, model, **options)
    attach(trainer, make_loader(**(config or {})))
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{resume}") if resume else None)
    return model.seen


@pytest.mark.parametrize(
    ("config", "accumulate", "ignore_data_skip"),
    [
        ({}, 1, True),
        ({}, 3, False),
        ({"per_epoch": True}, 3, True),
        ({"epochs": 4}, 1, False),
        ({"epochs": 4}, 3, True),
    ],
    ids=str,
)
def test_a_resumed_trainer_goes_on_with_the_very_next_batch(
    config: dict[str, Any], accumulate: int, ignore_data_skip: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": accumulate, "config": config}
    whole = train(tmp_path, **options)
    assert carried_in(tmp_path) == [Carried("transformers", str(tmp_path / "checkpoint-12"), len(whole))]
    for step in (3, 9):
        rest = train(tmp_path, resume=step, ignore_data_skip=ignore_data_skip, **options)
        assert rest == whole[-len(rest) :]
        before = json.loads((tmp_path / f"checkpoint-{step}" / "trainer_state.json").read_text())
        carried = before["stateful_callbacks"]["HoldfastCallback"]["attributes"]["carried"]
        assert carried["stream"]["step"] == len(whole) - len(rest)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({}, {"max_steps": 5}),
        ({"per_epoch": True}, {"max_steps": 5}),
        ({"per_epoch": True}, {"max_steps": -1, "num_train_epochs": 1.5, "gradient_accumulation_steps": 3}),
    ],
    ids=["endless", "epochs", "half an epoch"],
)
def test_a_finished_run_that_is_started_again_trains_no_further(
    config: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    """The trainer itself would make one more step at every start."""
    from holdfast.integrations.transformers import newest_checkpoint

    assert train(tmp_path, config=config, **options)
    ended = newest_checkpoint(tmp_path)
    assert ended is not None
    assert train(tmp_path, resume=int(ended.rpartition("-")[2]), config=config, **options) == []
    assert newest_checkpoint(tmp_path) == ended


def test_epochs_without_max_steps_give_every_sample_once_per_epoch(tmp_path: Path) -> None:
    seen = train(tmp_path, max_steps=-1, num_train_epochs=2, config={"epochs": 1})
    assert sorted(index for batch in seen for index in batch) == list(range(SAMPLES))


@pytest.mark.parametrize("given", ["added", "passed"])
def test_a_callback_with_a_loader_is_all_a_trainer_needs(given: str, tmp_path: Path) -> None:
    from holdfast.integrations.transformers import HoldfastCallback

    def train_with_callback(folder: Path, **options: Any) -> list[list[int]]:
        model, callback = Model(), HoldfastCallback(make_loader(per_epoch=True))
        trainer = make_trainer(folder, model, gradient_accumulation_steps=3, **options)
        if given == "added":
            trainer.add_callback(callback)
        else:
            trainer = transformers.Trainer(model=model, args=trainer.args, callbacks=[callback])
        trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
        return model.seen

    whole = train(tmp_path / "whole", config={"per_epoch": True}, gradient_accumulation_steps=3)
    first = train_with_callback(tmp_path / "cut", max_steps=6)
    assert first + train_with_callback(tmp_path / "cut") == whole


def test_a_trainer_with_two_loaders_is_refused(tmp_path: Path) -> None:
    from holdfast.integrations.transformers import HoldfastCallback, attach

    trainer = make_trainer(tmp_path, Model())
    trainer.add_callback(HoldfastCallback(make_loader()))
    with pytest.raises(ConfigError, match="two holdfast loaders"):
        attach(trainer, make_loader())


@pytest.mark.parametrize(
    "option",
    [{"auto_find_batch_size": True}, BY_LENGTH],
    ids=lambda found: next(iter(found)),
)
def test_options_that_a_stream_cannot_honour_are_refused(option: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} has no effect"):
        train(tmp_path, **option)


def test_a_trainer_that_arranges_its_own_batches_is_refused(tmp_path: Path) -> None:
    """TRL's GRPO takes every prompt several times: a stream in its place would train on something else, silently."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from holdfast.integrations.transformers import HoldfastCallback

    trainer = trl.GRPOTrainer(
        model=transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=8, n_positions=16, n_embd=8, n_layer=1, n_head=1)
        ),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=trl.GRPOConfig(output_dir=str(tmp_path), report_to=[], use_cpu=True, bf16=False, disable_tqdm=True),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["a"] * 8}),
        processing_class=make_tokenizer(),
    )
    trainer.add_callback(HoldfastCallback(make_loader()))
    with pytest.raises(ConfigError, match="arranges its own batches"):
        trainer.train()


def test_a_trainer_whose_callback_was_replaced_reads_from_the_new_loader(tmp_path: Path) -> None:
    from holdfast.integrations.transformers import HoldfastCallback

    model, second = Model(), make_loader()
    trainer = make_trainer(tmp_path, model, max_steps=2, save_strategy="no")
    trainer.add_callback(HoldfastCallback(make_loader()))
    trainer.train()
    trainer.remove_callback(HoldfastCallback)
    trainer.add_callback(HoldfastCallback(second))
    trainer.train()
    assert second.step == 2
    assert model.seen[2:] == model.seen[:2], "the beginning of another stream"


def test_other_trainers_train_as_before(tmp_path: Path) -> None:
    """Making a callback lets every trainer look for one."""
    from holdfast.integrations.transformers import HoldfastCallback

    HoldfastCallback(make_loader())
    model = Model()
    trainer = make_trainer(tmp_path, model, max_steps=2, save_strategy="no")
    trainer.train_dataset = [{"index": number} for number in range(8)]
    trainer.train()
    assert len(model.seen) == 2


def test_a_dataset_beside_the_loader_is_said_once_not_to_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from holdfast.integrations.transformers import attach

    model = Model()
    trainer = make_trainer(tmp_path, model, max_steps=2, save_strategy="no")
    trainer.train_dataset = dataset = [{"index": -1} for _ in range(8)]
    attach(trainer, loader := make_loader())
    assert trainer.get_train_dataloader(), "an endless loader is true"
    trainer.train()
    trainer.train()
    told = [record.getMessage() for record in caplog.records if "is not read" in record.getMessage()]
    assert len(told) == 1
    assert type(dataset).__name__ in told[0]
    assert repr(loader.dataset) in told[0]
    assert [-1] * BATCH not in model.seen


def test_a_checkpoint_without_a_stream_state_is_refused(tmp_path: Path) -> None:
    train(tmp_path)
    path = tmp_path / "checkpoint-6" / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["HoldfastCallback"]
    path.write_text(json.dumps(state))
    with pytest.raises(StateError, match="holds no stream state"):
        train(tmp_path, resume=6)


def test_a_trainer_that_reads_something_else_is_refused(tmp_path: Path) -> None:
    from holdfast.integrations.transformers import HoldfastCallback

    trainer = make_trainer(tmp_path, Model())
    trainer.train_dataset = [{"index": number} for number in range(8)]
    trainer.add_callback(HoldfastCallback())
    with pytest.raises(ConfigError, match="does not read its batches from a holdfast loader"):
        trainer.train()


def test_restored_callback_states_find_the_loader_again(tmp_path: Path) -> None:
    whole = train(tmp_path)
    assert train(tmp_path, resume=6, restore_callback_states_from_checkpoint=True) == whole[6:]


def test_the_log_shows_a_loss_that_is_not_a_number(tmp_path: Path) -> None:
    from holdfast.integrations.transformers import attach

    trainer = make_trainer(tmp_path, Model({5: float("nan")}), max_steps=6, save_strategy="no")
    attach(trainer, make_loader())
    trainer.train()
    losses = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
    assert np.isnan(losses[5])


@pytest.mark.parametrize("asked_at", ["on_step_end", "on_substep_end", "on_optimizer_step"])
def test_a_run_stopped_by_a_signal_continues_from_what_the_trainer_saved_then(asked_at: str, tmp_path: Path) -> None:
    """The trainer saves at the next event: before a step, before the optimizer's, or after it."""
    from holdfast.integrations.transformers import attach, newest_checkpoint

    jit = pytest.importorskip("transformers.trainer_jit_checkpoint")

    class Signal(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def ask(self, _: Any, state: Any, __: Any, **___: Any) -> None:
            if state.global_step == 4:
                (saving,) = (each for each in trainer.callback_handler.callbacks if isinstance(each, own))
                saving.jit_manager._enable_checkpoint()  # a while after SIGTERM

    own = jit.JITCheckpointCallback
    seen = []
    for folder in ("whole", "stopped", "stopped"):
        model = Model()
        options = {"gradient_accumulation_steps": 2, "save_strategy": "no", "max_steps": 8}
        trainer = make_trainer(tmp_path / folder, model, enable_jit_checkpoint=True, **options)
        attach(trainer, make_loader(per_epoch=True), folder=tmp_path / folder / "run")
        newest = newest_checkpoint(tmp_path / folder)
        if folder == "stopped" and newest is None:
            setattr(asking := Signal(), asked_at, asking.ask)
            trainer.add_callback(asking)
        trainer.train(resume_from_checkpoint=newest)
        seen.append(model.seen)
        last = trainer.state.global_step
    whole, stopped, resumed = seen
    assert last == 8
    assert len(stopped) < len(whole)
    done = 2 * int(str(newest).rpartition("-")[2])
    assert stopped[:done] + resumed == whole


def test_a_checkpoint_that_the_trainer_has_not_finished_on_a_signal_is_passed_over(tmp_path: Path) -> None:
    from holdfast.integrations.transformers import newest_checkpoint

    train(tmp_path)
    assert str(newest_checkpoint(tmp_path)).endswith("checkpoint-12")
    (tmp_path / "checkpoint-12" / "checkpoint-is-incomplete.txt").touch()
    assert str(newest_checkpoint(tmp_path)).endswith("checkpoint-9")


def test_batches_in_hand_when_training_stopped_come_again(tmp_path: Path) -> None:
    from holdfast.integrations.transformers import HoldfastTrainerMixin

    class Stopper(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == 2

    class Trainer(HoldfastTrainerMixin, transformers.Trainer):  # type: ignore[misc, name-defined]
        pass

    model, loader = Model(), make_loader()
    arguments = make_trainer(tmp_path, model, gradient_accumulation_steps=3, save_strategy="no").args
    trainer = Trainer(model=model, args=arguments, loader=loader, callbacks=[Stopper()])
    trainer.train()
    assert loader.unacknowledged == 3, "the trainer had taken three batches and made no step of them"
    assert loader.state_dict()["step"] == 6
    assert len(model.seen) == 7
    trainer.remove_callback(Stopper)
    trainer.train()
    assert model.seen[7] == model.seen[6], "they come again: their gradients are gone"


def test_a_recorded_run_is_a_run_to_look_at_over_restarts(tmp_path: Path) -> None:
    from holdfast.integrations.transformers import attach
    from holdfast.page import page_of_run
    from holdfast.run import RunLog

    folder = tmp_path / "exp7"
    for steps, resume in ((6, None), (12, str(tmp_path / "out" / "checkpoint-6"))):
        trainer = make_trainer(tmp_path / "out", Model(), max_steps=steps, save_steps=6)
        attach(trainer, make_loader(), folder=folder)
        trainer.train(resume_from_checkpoint=resume)
    log = RunLog(folder)
    assert log.verify() == []
    records = log.steps()
    assert [record["step"] for record in records] == list(range(12))
    assert all("grad_norm" in record and "lr" in record for record in records)
    assert len(log.attempts) == 2
    logged = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
    assert logged[8] in (pytest.approx(records[7]["loss"]), round(records[7]["loss"], 4))  # transformers 4 rounds it
    page = page_of_run(folder)
    assert {event.kind for event in page.events} == {"checkpoint", "restart", "end"}


def test_the_gradient_norm_is_that_before_the_trainer_clips(tmp_path: Path) -> None:
    from holdfast.integrations.transformers import attach
    from holdfast.run import RunLog

    trainer = make_trainer(tmp_path / "out", Model({3: 1e6}), max_steps=6, max_grad_norm=0.01)
    attach(trainer, make_loader(), folder=tmp_path / "run")
    trainer.train()
    logged = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
    records = RunLog(tmp_path / "run").steps()
    assert [record["grad_norm"] for record in records] == pytest.approx(logged)
    assert max(logged) > 1e4
    layers = {name: value for name, value in records[0].items() if name.startswith("grad_norm/")}
    assert list(layers.values()) == pytest.approx([logged[0]]), "its layers too"


def test_metrics_and_the_monitor_continue_from_the_trainers_checkpoint(tmp_path: Path) -> None:
    from holdfast.integrations.transformers import attach

    def measured(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "metrics": [hfast.Metric("a", "seen", 1, hfast.AggregationType.SUM)]}

    def make_measured() -> hfast.StreamingShardLoader:
        source = hfast.ArraySource({"index": np.arange(SAMPLES)})
        dataset = hfast.StreamDataset(source, name="a", seed=2, transform=measured)
        config = hfast.StreamingConfig(batch_size=BATCH)
        return hfast.StreamingShardLoader(dataset, config, collate=collate)

    def collate(samples: Any) -> dict[str, Any]:
        batch = hfast.collate_with_metrics(samples)
        return {**batch, "index": torch.tensor(batch["index"])}

    monitors = []
    for steps, resume in ((7, None), (12, str(tmp_path / "out" / "checkpoint-6"))):
        metrics = hfast.MetricsAggregator()
        trainer = make_trainer(tmp_path / "out", Model(), max_steps=steps, save_steps=6, gradient_accumulation_steps=2)
        attach(trainer, make_measured(), folder=tmp_path / "exp7", metrics=metrics)
        trainer.train(resume_from_checkpoint=resume)
        assert metrics.get_metrics()["a"]["seen"] == steps * 2 * BATCH, "each sample that was trained on, once"
        saved = json.loads((tmp_path / "out" / f"checkpoint-{steps}" / "trainer_state.json").read_text())
        carried = saved["stateful_callbacks"]["HoldfastCallback"]["attributes"]["carried"]
        monitors.append(carried["monitors"][0]["debugger"]["fed"])
    assert monitors == [7, 12], "the monitor of the second run has seen the first six steps and its own six"


def test_trls_trainer_resumes_exactly_too(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    from holdfast.integrations.transformers import attach

    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=8, n_layer=1, n_head=1)
    tokens = np.random.default_rng(0).integers(2, 64, size=(SAMPLES, 8))
    tokenizer = make_tokenizer()

    def make_stream() -> hfast.StreamingShardLoader:
        columns = {"input_ids": tokens, "labels": tokens, "attention_mask": np.ones_like(tokens)}
        dataset = hfast.StreamDataset(hfast.ArraySource(columns), name="a", seed=2)
        return hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=BATCH))

    def train_trl(steps: int, resume: str | None = None, **options: Any) -> list[list[list[int]]]:
        seen = []

        class Noting(trl.SFTTrainer):  # type: ignore[misc, name-defined]
            def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                seen.append(inputs["input_ids"].tolist())
                return super().compute_loss(model, inputs, *args, **kwargs)

        arguments = trl.SFTConfig(
            output_dir=str(tmp_path),
            max_steps=steps,
            save_steps=3,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            **options,
        )
        trainer = Noting(
            model=transformers.GPT2LMHeadModel(config),
            args=arguments,
            train_dataset=make_trl_dataset(),
            processing_class=tokenizer,
        )
        attach(trainer, make_stream())
        trainer.train(resume_from_checkpoint=resume)
        return seen

    whole = train_trl(7)
    assert len(whole) == 7
    assert train_trl(7, str(tmp_path / "checkpoint-3")) == whole[3:]
    with pytest.raises(ConfigError, match="packing has no effect"):
        train_trl(7, packing=True, max_length=8)


def make_trl_dataset() -> Any:
    """Return the dataset that TRL insists on and never reads from here."""
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"input_ids": [[2, 3]]})


def make_tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<eos>": 0, "<unk>": 1}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<eos>", unk_token="<unk>", pad_token="<eos>"
    )


@pytest.mark.parametrize("torn", ["", '{"global_step": 1'], ids=["missing", "torn"])
def test_a_checkpoint_that_was_never_finished_is_passed_over(torn: str, tmp_path: Path) -> None:
    from holdfast.integrations.transformers import newest_checkpoint

    whole = train(tmp_path / "whole")
    first = train(tmp_path / "cut", max_steps=6)
    assert newest_checkpoint(tmp_path / "cut") == str(tmp_path / "cut" / "checkpoint-6")
    cut_off(tmp_path / "cut" / "checkpoint-6", torn)
    assert newest_checkpoint(tmp_path / "cut") == str(tmp_path / "cut" / "checkpoint-3")
    with pytest.raises(StateError, match="is incomplete") as refused:
        train(tmp_path / "cut", resume=6)
    assert "checkpoint-3" in str(refused.value)
    assert first[:3] + resume_newest(tmp_path / "cut") == whole


def test_a_checkpoint_with_a_file_cut_or_lost_is_passed_over(tmp_path: Path) -> None:
    """As after a power loss: nothing the trainer writes is flushed to the disk."""
    from holdfast.integrations.transformers import newest_checkpoint

    train(tmp_path, max_steps=6)
    newest = tmp_path / "checkpoint-6"
    files = [path for path in newest.iterdir() if path.name != "trainer_state.json"]
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(StateError, match=f"is incomplete: {path.name} has"):
            train(tmp_path, resume=6)
        path.unlink()
        assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-3")
        path.write_bytes(content)
        assert newest_checkpoint(tmp_path) == str(newest)


def test_a_run_killed_in_its_first_save_starts_again(tmp_path: Path) -> None:
    from holdfast.integrations.transformers import newest_checkpoint

    whole = train(tmp_path, max_steps=3)
    cut_off(tmp_path / "checkpoint-3", "")
    assert newest_checkpoint(tmp_path) is None
    assert resume_newest(tmp_path, max_steps=3) == whole


def cut_off(checkpoint: Path, left: str) -> None:
    """Leave a checkpoint as a kill in the middle of the save does."""
    state = checkpoint / "trainer_state.json"
    state.unlink()
    if left:
        state.write_text(left, encoding="utf-8")


def resume_newest(folder: Path, **options: Any) -> list[list[int]]:
    from holdfast.integrations.transformers import attach

    model = Model()
    trainer = make_trainer(folder, model, **options)
    attach(trainer, make_loader())
    trainer.train(resume_from_checkpoint=True)
    return model.seen
