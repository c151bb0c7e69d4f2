"""The stream inside Lightning."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import holdfast as hfast
from holdfast.errors import ConfigError, StateError
from holdfast.integrations.carried import Carried, carried_in

lightning = pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")  # the trainer's own deprecations are not ours to fail on


def make_loader(**options: Any) -> hfast.StreamingShardLoader:
    dataset = hfast.StreamDataset(hfast.ArraySource({"index": np.arange(40)}), name="a", seed=2)
    return hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=4, **options))


class Ones(torch.utils.data.Dataset[dict[str, int]]):
    """Samples that are not a stream's."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"index": 1}


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Notes every batch it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[int]] = []

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        self.seen.append(batch["index"].tolist())
        loss: torch.Tensor = ((self.weight - batch["index"].float()) ** 2).mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class Validated(Module):
    """Counts how often it was validated."""

    def __init__(self) -> None:
        super().__init__()
        self.validations = 0

    def validation_step(self, batch: Any, number: int) -> None:
        pass

    def on_validation_epoch_end(self) -> None:
        self.validations += not self.trainer.sanity_checking


def make_trainer(steps: int, *callbacks: Any, enable_checkpointing: bool = False, **options: Any) -> Any:
    return lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=enable_checkpointing,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **options,
    )


@pytest.mark.parametrize("options", [{}, {"per_epoch": True}], ids=["endless", "epochs"])
def test_a_checkpoint_says_what_the_model_has_seen_and_not_what_was_read_ahead(
    options: dict[str, Any], tmp_path: Path
) -> None:
    from holdfast.integrations.lightning import HoldfastCallback

    whole = Module()
    make_trainer(17, HoldfastCallback()).fit(whole, make_loader(**options))
    first, loader = Module(), make_loader(**options)
    trainer = make_trainer(7, HoldfastCallback())
    trainer.fit(first, loader)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert loader.state_dict()["step"] == 7
    assert carried_in(tmp_path) == [Carried("lightning", str(tmp_path / "last.ckpt"), 7)]
    resumed = Module()
    make_trainer(17, HoldfastCallback()).fit(
        resumed, make_loader(**options), ckpt_path=tmp_path / "last.ckpt", weights_only=False
    )
    assert first.seen + resumed.seen == whole.seen


@pytest.mark.parametrize("accumulate", [1, 5])
@pytest.mark.parametrize("validated", [True, False])
def test_every_checkpoint_near_an_epochs_edge_resumes_exactly(accumulate: int, validated: bool, tmp_path: Path) -> None:
    """Epochs of 50 samples in batches of 4 are 13, 12 and 13 batches."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from holdfast.integrations.lightning import HoldfastCallback

    def fit(module: Module, *callbacks: Any, checkpoint: Path | None = None) -> Any:
        dataset = hfast.StreamDataset(hfast.ArraySource({"index": np.arange(50)}), name="a", seed=2)
        loader = hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=4, per_epoch=True))
        trainer = make_trainer(
            -1,
            HoldfastCallback(),
            *callbacks,
            max_epochs=3,
            accumulate_grad_batches=accumulate,
            enable_checkpointing=bool(callbacks),
        )
        held_out = torch.utils.data.DataLoader(Ones()) if validated else None
        trainer.fit(module, loader, held_out, ckpt_path=checkpoint, weights_only=False)
        return trainer

    whole = Validated() if validated else Module()
    every = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    ended = fit(whole, every)
    assert len(whole.seen) == 38
    if validated:
        assert whole.validations == 3
    saved = sorted(tmp_path.glob("step=*.ckpt"), key=lambda path: int(path.stem.removeprefix("step=")))
    assert len(saved) == ended.global_step
    edges = [number for number in range(len(saved)) if number % (12 // accumulate) in (0, 1, 2, 12 // accumulate - 1)]
    for number in edges:
        resumed = Validated() if validated else Module()
        trainer = fit(resumed, checkpoint=saved[number])
        seen = len(whole.seen) - len(resumed.seen)
        assert resumed.seen == whole.seen[seen:], saved[number].name
        assert trainer.global_step == ended.global_step, saved[number].name
        if accumulate == 1:
            assert seen == number + 1, saved[number].name
        assert torch.equal(resumed.weight, whole.weight), saved[number].name


@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size"])
def test_several_streams_with_epochs_of_their_own_resume_exactly(mode: Any, tmp_path: Path) -> None:
    """Where the longest decides, epochs are 13, 12 and 13 batches; Lightning itself asks once."""
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.utilities import CombinedLoader

    from holdfast.integrations.lightning import HoldfastCallback

    class Both(Module):
        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            parts = [part["index"] for part in batch if part is not None]
            self.seen.append([index for part in parts for index in part.tolist()])
            return ((self.weight - torch.cat(parts).float()) ** 2).mean()

    def fit(module: Module, *callbacks: Any, checkpoint: Path | None = None) -> None:
        loaders = []
        for name, samples in (("a", 50), ("b", 30)):
            dataset = hfast.StreamDataset(hfast.ArraySource({"index": np.arange(samples)}), name=name, seed=2)
            config = hfast.StreamingConfig(batch_size=4, per_epoch=True)
            loaders.append(hfast.StreamingShardLoader(dataset, config))
        trainer = make_trainer(-1, HoldfastCallback(), *callbacks, max_epochs=3, enable_checkpointing=bool(callbacks))
        trainer.fit(module, CombinedLoader(loaders, mode), ckpt_path=checkpoint, weights_only=False)

    whole = Both()
    fit(whole, ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1))
    for step in (5, len(whole.seen) // 2, len(whole.seen) - 3):
        resumed = Both()
        fit(resumed, checkpoint=tmp_path / f"step={step}.ckpt")
        assert resumed.seen == whole.seen[step:], step


class Several(Module):
    """Notes the batches of several streams by name."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, list[int]]] = []

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        given = {name: part["index"] for name, part in batch.items() if part is not None}
        self.steps.append({name: index.tolist() for name, index in given.items()})
        return ((self.weight - torch.cat(list(given.values())).float()) ** 2).mean()


def make_streams(names: str, **options: Any) -> dict[str, hfast.StreamingShardLoader]:
    """Return streams of 50 and 30 samples: epochs of 13 or 12, and of 8 or 7 batches of 4."""
    sources = {name: hfast.ArraySource({"index": np.arange({"a": 50, "b": 30}[name])}) for name in names}
    made = {name: hfast.StreamDataset(source, name=name, seed=2) for name, source in sources.items()}
    config = hfast.StreamingConfig(**{"batch_size": 4, "per_epoch": True, **options})
    return {name: hfast.StreamingShardLoader(dataset, config) for name, dataset in made.items()}


@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size"])
def test_several_streams_resume_within_an_epoch_at_another_number_of_processes(mode: Any, tmp_path: Path) -> None:
    """A loader that was resized counts the batches of its epoch from there on."""
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.utilities import CombinedLoader

    from holdfast.integrations.lightning import HoldfastCallback

    def fit(module: Module, *callbacks: Any, checkpoint: Path | None = None, **options: Any) -> Any:
        trainer = make_trainer(-1, HoldfastCallback(), *callbacks, max_epochs=4, enable_checkpointing=bool(callbacks))
        loaders = CombinedLoader(make_streams("ab", **options), mode)
        trainer.fit(module, loaders, ckpt_path=checkpoint, weights_only=False)
        return trainer

    whole = Several()
    ended = fit(whole, ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1))
    for step in (3, 6, 10, 13, 15):
        resumed = Several()
        trainer = fit(resumed, checkpoint=tmp_path / f"step={step}.ckpt", rank=0, world_size=2, batch_size=2)
        assert (trainer.global_step, trainer.current_epoch) == (ended.global_step, ended.current_epoch), step
        for half, both in zip(resumed.steps, whole.steps[step:], strict=True):
            assert all(set(half[name]) < set(both[name]) for name in "ab"), step


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_where_the_shortest_of_several_streams_ends_the_epoch_no_batch_of_the_others_is_lost(names: str) -> None:
    """What is left of a longer stream's epoch may be shorter than an epoch of the shortest."""
    from lightning.pytorch.utilities import CombinedLoader

    from holdfast.integrations.lightning import HoldfastCallback

    module = Several()
    trainer = make_trainer(-1, HoldfastCallback(), max_epochs=5, accumulate_grad_batches=2)
    trainer.fit(module, CombinedLoader(make_streams(names), "min_size"))
    for name, loader in make_streams(names).items():
        batches = [given[name] for given in module.steps]
        assert batches == [loader.batch_at(step)["index"].tolist() for step in range(len(batches))], name
    assert len(module.steps) == 8 + 5 + 2 + 8 + 2
    assert trainer.global_step == 4 + 3 + 1 + 4 + 1, "an epoch ends with a step"


@pytest.mark.parametrize("options", [{"per_epoch": True}, {}], ids=["epochs", "endless"])
def test_a_loader_that_is_made_anew_for_every_epoch_goes_on_with_the_stream(options: dict[str, Any]) -> None:
    from holdfast.integrations.lightning import HoldfastCallback

    class Making(Module):
        def train_dataloader(self) -> Any:
            return make_loader(**options)

    module = Making()
    limit: dict[str, Any] = {} if options else {"limit_train_batches": 6}
    trainer = make_trainer(-1, HoldfastCallback(), max_epochs=3, reload_dataloaders_every_n_epochs=1, **limit)
    trainer.fit(module)
    assert len(module.seen) == (30 if options else 18)
    assert module.seen == [make_loader().batch_at(step)["index"].tolist() for step in range(len(module.seen))]


def test_options_that_a_stream_cannot_honour_are_refused() -> None:
    from holdfast.integrations.lightning import HoldfastCallback

    with pytest.raises(ConfigError, match="overfit_batches"):
        make_trainer(-1, HoldfastCallback(), max_epochs=2, overfit_batches=2).fit(Module(), make_loader())


def test_a_run_that_accumulates_loses_no_batch_when_it_is_killed_again_before_its_next_step(tmp_path: Path) -> None:
    """Lightning itself saves after the first batch of the resumed run, and not the gradient of that batch."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from holdfast.integrations.lightning import HoldfastCallback

    def fit(batches: int, checkpoint: str | None = None) -> list[list[int]]:
        class Killed(Module):
            def on_train_batch_start(self, batch: Any, number: int) -> None:
                if len(self.seen) == batches:
                    raise MemoryError  # nothing is saved on the way out

        module = Killed()
        saved = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=2, save_last=True)
        trainer = make_trainer(6, HoldfastCallback(), saved, accumulate_grad_batches=3, enable_checkpointing=True)
        with contextlib.suppress(MemoryError):
            trainer.fit(module, make_loader(), ckpt_path=checkpoint, weights_only=False)
        return module.seen

    whole = [make_loader().batch_at(step)["index"].tolist() for step in range(18)]
    assert fit(8) == whole[:8]
    assert fit(1, "last") == whole[6:7]
    assert fit(99, "last") == whole[6:]


@pytest.mark.parametrize("interval", [7, 0.5])
def test_a_run_with_a_validation_interval_resumes_near_the_end_of_an_epoch(interval: Any, tmp_path: Path) -> None:
    """Epochs are 10 batches. Lightning itself compares the interval with what is left of the epoch."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from holdfast.integrations.lightning import HoldfastCallback

    class Placed(Validated):
        def __init__(self) -> None:
            super().__init__()
            self.places: list[int] = []

        def on_validation_epoch_end(self) -> None:
            if not self.trainer.sanity_checking:
                self.places.append(self.trainer.global_step)

    def fit(module: Module, *callbacks: Any, checkpoint: Path | None = None) -> None:
        trainer = make_trainer(
            -1,
            HoldfastCallback(),
            *callbacks,
            max_epochs=3,
            enable_checkpointing=bool(callbacks),
            val_check_interval=interval,
        )
        held_out = torch.utils.data.DataLoader(Ones())
        trainer.fit(module, make_loader(per_epoch=True), held_out, ckpt_path=checkpoint, weights_only=False)

    whole, resumed = Placed(), Placed()
    fit(whole, ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1))
    fit(resumed, checkpoint=tmp_path / "step=8.ckpt")
    assert resumed.seen == whole.seen[8:]
    assert resumed.places == [place for place in whole.places if place > 8]


@pytest.mark.parametrize("case", ["the shorter of two has ended", "the limit lies beyond the epoch"])
def test_where_a_resume_is_not_exact_no_stream_loses_or_repeats_a_batch(case: str, tmp_path: Path) -> None:
    """What docs/trainers.md says of ``max_size`` and of ``limit_train_batches``: every stream goes on in its order."""
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.utilities import CombinedLoader

    from holdfast.integrations.lightning import HoldfastCallback

    sizes = {"a": 50, "b": 30} if case.startswith("the shorter") else {"a": 50}
    limit = {} if len(sizes) == 2 else {"limit_train_batches": 20}

    class Noting(Module):
        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            parts = batch if isinstance(batch, dict) and "a" in batch else {"a": batch}
            given = {name: part["index"] for name, part in parts.items() if part is not None}
            self.steps.append({name: index.tolist() for name, index in given.items()})
            return ((self.weight - torch.cat(list(given.values())).float()) ** 2).mean()

        def __init__(self) -> None:
            super().__init__()
            self.steps: list[dict[str, list[int]]] = []

    def make_loaders() -> dict[str, hfast.StreamingShardLoader]:
        config = hfast.StreamingConfig(batch_size=4, per_epoch=True)
        sources = {name: hfast.ArraySource({"index": np.arange(size)}) for name, size in sizes.items()}
        made = {name: hfast.StreamDataset(source, name=name, seed=2) for name, source in sources.items()}
        return {name: hfast.StreamingShardLoader(dataset, config) for name, dataset in made.items()}

    def fit(module: Module, *callbacks: Any, checkpoint: Path | None = None) -> None:
        loaders = make_loaders()
        data: Any = CombinedLoader(loaders, "max_size") if len(sizes) == 2 else loaders["a"]
        trainer = make_trainer(
            -1, HoldfastCallback(), *callbacks, max_epochs=3, enable_checkpointing=bool(callbacks), **limit
        )
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=False)

    whole = Noting()
    fit(whole, ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1))
    reference = make_loaders()
    for step in (5, 9, 10, 13, 17, 24):
        resumed = Noting()
        fit(resumed, checkpoint=tmp_path / f"step={step}.ckpt")
        for name, loader in reference.items():
            batches = [given[name] for given in whole.steps[:step] + resumed.steps if name in given]
            assert batches == [loader.batch_at(n)["index"].tolist() for n in range(len(batches))], (name, step)


def test_a_second_fit_goes_on_with_the_batch_that_the_first_had_read_ahead() -> None:
    from holdfast.integrations.lightning import HoldfastCallback

    loader, module = make_loader(), Module()
    for _ in range(2):
        make_trainer(3, HoldfastCallback()).fit(module, loader)
    reference = make_loader()
    assert module.seen == [reference.batch_at(step)["index"].tolist() for step in range(6)]


def test_a_checkpoint_without_a_stream_state_is_refused(tmp_path: Path) -> None:
    from holdfast.integrations.lightning import HoldfastCallback

    trainer = make_trainer(4)
    trainer.fit(Module(), torch.utils.data.DataLoader(Ones()))
    trainer.save_checkpoint(tmp_path / "foreign.ckpt")
    assert carried_in(tmp_path) == [Carried("lightning", str(tmp_path / "foreign.ckpt"), None)]
    with pytest.raises(StateError, match="holds no stream state"):
        make_trainer(8, HoldfastCallback()).fit(
            Module(), make_loader(), ckpt_path=tmp_path / "foreign.ckpt", weights_only=False
        )


def test_a_recorded_run_is_a_run_to_look_at_over_restarts(tmp_path: Path) -> None:
    from holdfast.integrations.lightning import HoldfastCallback
    from holdfast.run import RunLog

    folder = tmp_path / "exp7"
    for steps, resume in ((4, None), (9, tmp_path / "last.ckpt")):
        metrics = hfast.MetricsAggregator()

        class Measuring(Module):
            def training_step(self, batch: Any, number: int) -> torch.Tensor:
                batch["metrics"] = [hfast.Metric("a", "seen", len(batch["index"]), hfast.AggregationType.SUM)]
                return super().training_step(batch, number)

            def on_train_end(self) -> None:
                self.trainer.save_checkpoint(tmp_path / "last.ckpt")

        trainer = make_trainer(steps, HoldfastCallback(folder, metrics=metrics))
        trainer.fit(Measuring(), make_loader(), ckpt_path=resume, weights_only=False if resume else None)
        assert metrics.get_metrics()["a"]["seen"] == steps * 4, "the figures travel in the checkpoint"
        saved = torch.load(tmp_path / "last.ckpt", weights_only=False)["callbacks"]["HoldfastCallback"]
        assert saved["monitors"][0]["debugger"]["fed"] == steps, "and so does what the monitor has seen"
    log = RunLog(folder)
    assert log.verify() == []
    assert [record["step"] for record in log.steps()] == list(range(9))
    assert all(record["loss"] > 0 and "grad_norm" in record for record in log.steps())
    assert [event["step"] for event in log.events("start")] == [0, 4]
    assert [event["step"] for event in log.events("checkpoint")] == [4, 9]


def test_the_loss_and_the_gradient_norm_are_those_of_the_batches_before_clipping(tmp_path: Path) -> None:
    from holdfast.integrations.lightning import HoldfastCallback
    from holdfast.run import RunLog

    class Noting(Module):
        def __init__(self) -> None:
            super().__init__()
            self.losses: list[float] = []
            self.norms: list[float] = []

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = super().training_step(batch, number)
            self.losses.append(float(loss))
            return loss

        def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
            assert self.weight.grad is not None
            self.norms.append(float(self.weight.grad.norm()))

    module = Noting()
    # Epochs of 10 batches: every fourth group has one batch instead of three.
    loader = make_loader(per_epoch=True)
    assert len(loader) % 3 == 1
    trainer = make_trainer(8, HoldfastCallback(tmp_path / "run"), accumulate_grad_batches=3, gradient_clip_val=1e-3)
    trainer.fit(module, loader)
    records = RunLog(tmp_path / "run").steps()
    taken = [record["batches"] for record in records]
    assert {stop - start for start, stop in taken} == {1, 3}
    means = [sum(module.losses[start:stop]) / (stop - start) for start, stop in taken]
    assert [record["loss"] for record in records] == pytest.approx(means)
    assert [record["grad_norm"] for record in records] == pytest.approx(module.norms)
    assert min(module.norms) > 1e-2


@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 1)])
@pytest.mark.parametrize("steps", [6, 13])
def test_an_epoch_goes_on_to_its_end_at_another_number_of_processes(
    before: int, after: int, steps: int, tmp_path: Path
) -> None:
    from holdfast.integrations.lightning import HoldfastCallback

    def fit(module: Module, world: int, **options: Any) -> Any:
        dataset = hfast.StreamDataset(hfast.ArraySource({"index": np.arange(100)}), name="a", seed=2)
        config = hfast.StreamingConfig(rank=0, world_size=world, batch_size=8 // world, per_epoch=True)
        trainer = make_trainer(-1, HoldfastCallback(), max_epochs=3)
        trainer.fit(module, hfast.StreamingShardLoader(dataset, config), **options)
        return trainer

    class Saving(Module):
        def on_train_batch_end(self, *_: Any) -> None:
            if self.trainer.global_step == steps:
                self.trainer.save_checkpoint(tmp_path / "saved.ckpt")

    whole = fit(Saving(), before)
    resumed = Module()
    trainer = fit(resumed, after, ckpt_path=tmp_path / "saved.ckpt", weights_only=False)
    assert trainer.global_step == whole.global_step == 38  # of 300 samples, 8 at a time
    assert len(resumed.seen) == 38 - steps
    assert trainer.current_epoch == 3


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(
    "when", [{}, {"save_on_train_epoch_end": True}, {"save_on_train_epoch_end": False}], ids=["default", "train", "val"]
)
def test_a_checkpoint_of_an_epochs_end_resumes_exactly(when: dict[str, Any], accumulate: int, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    from holdfast.integrations.lightning import HoldfastCallback

    def fit(epochs: int, *callbacks: Any, checkpoint: Path | None = None) -> list[list[int]]:
        module = Validated()
        dataset = hfast.StreamDataset(hfast.ArraySource({"index": np.arange(50)}), name="a", seed=2)
        loader = hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=4, per_epoch=True))
        trainer = make_trainer(
            -1,
            HoldfastCallback(),
            *callbacks,
            max_epochs=epochs,
            accumulate_grad_batches=accumulate,
            enable_checkpointing=bool(callbacks),
            num_sanity_val_steps=0,
        )
        trainer.fit(
            module,
            loader,
            torch.utils.data.DataLoader(Ones(), batch_size=4),
            ckpt_path=checkpoint,
            weights_only=False if checkpoint else None,
        )
        assert trainer.current_epoch == epochs
        assert module.validations == (4 - 1 if checkpoint else epochs)
        return module.seen

    whole = fit(4)
    first = fit(1, ModelCheckpoint(dirpath=tmp_path, **when))
    (saved,) = tmp_path.glob("*.ckpt")
    assert first + fit(4, checkpoint=saved) == whole, "the next epoch is a batch shorter than the one after it"
