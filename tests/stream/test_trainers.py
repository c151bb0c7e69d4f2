"""The loader handed to trainers as an iterable of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

SAMPLES, BATCH = 48, 8


class Model(torch.nn.Module):
    """Notes every batch it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[int]] = []

    def forward(self, index: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.seen.append(index.tolist())
        return {"loss": ((self.weight - index.float()) ** 2).mean()}


def make_loader(**options: Any) -> StreamingShardLoader:
    dataset = StreamDataset(ArraySource({"index": np.arange(SAMPLES)}), name="a", seed=2)
    return StreamingShardLoader(dataset, StreamingConfig(batch_size=BATCH, per_epoch=True, **options))


@pytest.mark.filterwarnings("ignore")  # the trainer's own deprecations are not ours to fail on
def test_the_hugging_face_trainer_sees_every_sample_once_per_epoch_and_resumes_exactly(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")

    def train(loader: StreamingShardLoader, folder: str, steps: int) -> list[list[int]]:
        class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
            def get_train_dataloader(self) -> Any:
                return loader

        model = Model()
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / folder),
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        Trainer(model=model, args=arguments).train()
        return model.seen

    whole = train(make_loader(), "whole", 12)
    assert len(whole) == 12
    for epoch in (whole[:6], whole[6:]):
        assert sorted(index for batch in epoch for index in batch) == list(range(SAMPLES))
    first = make_loader()
    before = train(first, "before", 5)
    assert first.step == 5, "the trainer took a batch it did not train on"
    resumed = make_loader()
    resumed.load_state_dict(first.state_dict())
    assert before + train(resumed, "after", 7) == whole


def test_a_plain_training_loop_over_epochs_goes_on_where_the_loader_stands() -> None:
    loader = make_loader(epochs=3)
    epochs = []
    while not loader.is_empty():
        epochs.append(sorted(index for batch in loader for index in batch["index"].tolist()))
    assert epochs == [list(range(SAMPLES))] * 3
