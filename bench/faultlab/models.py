"""The lab's models: five families, each a few thousand parameters, with the hooks the faults need."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from bench.faultlab.data import SEQUENCE, Task
from torch import nn

__all__ = ["build_model"]


class Quantize(nn.Module):
    """Rounds what passes to fp16 or bf16, forwards and backwards, so that a CPU run overflows like a GPU's."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """The value in the reduced precision."""
        return value if self.dtype is None else value.to(self.dtype).float()


class Mlp(nn.Module):
    """A plain ReLU network, with or without batch normalisation."""

    def __init__(
        self,
        inputs: int,
        width: int,
        depth: int,
        outputs: int,
        *,
        norm: bool,
        dropout: float,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        size = inputs
        for _ in range(depth):
            layers: list[nn.Module] = [nn.Linear(size, width)]
            if norm:
                layers.append(nn.BatchNorm1d(width))
            layers += [nn.ReLU(), Quantize(dtype), nn.Dropout(dropout)]
            blocks.append(nn.Sequential(*layers))
            size = width
        self.hidden = nn.ModuleList(blocks)
        self.head = nn.Linear(size, outputs)
        self.quantize = Quantize(dtype)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Logits, or the regression's prediction."""
        value = value.flatten(1)
        for block in self.hidden:
            value = block(value)
        logits: torch.Tensor = self.quantize(self.head(value))
        return logits


class Cnn(nn.Module):
    """Two or three convolutions, a pool and a head."""

    def __init__(
        self, width: int, depth: int, outputs: int, *, norm: bool, dropout: float, dtype: torch.dtype | None
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        size = 1
        for _ in range(depth):
            layers: list[nn.Module] = [nn.Conv2d(size, width, 3, padding=1)]
            if norm:
                layers.append(nn.BatchNorm2d(width))
            layers += [nn.ReLU(), Quantize(dtype)]
            blocks.append(nn.Sequential(*layers))
            size = width
        self.hidden = nn.ModuleList(blocks)
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(size * 16, outputs)
        self.quantize = Quantize(dtype)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Logits."""
        for block in self.hidden:
            value = block(value)
        logits: torch.Tensor = self.quantize(self.head(self.dropout(self.pool(value).flatten(1))))
        return logits


class Recurrent(nn.Module):
    """An embedding, a recurrent cell of any kind and a head over every position."""

    def __init__(
        self, cell: str, width: int, depth: int, outputs: int, *, dropout: float, dtype: torch.dtype | None
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(outputs, width)
        cells: dict[str, Callable[..., nn.Module]] = {
            "gru": nn.GRU,
            "lstm": nn.LSTM,
            "rnn": partial(nn.RNN, nonlinearity="relu"),
        }
        self.recurrent = cells[cell](width, width, num_layers=depth, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, outputs)
        self.quantize = Quantize(dtype)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Logits at every position."""
        value = self.quantize(self.embedding(value))
        value = self.quantize(self.recurrent(value)[0])
        logits: torch.Tensor = self.quantize(self.head(self.dropout(value)))
        return logits


class Transformer(nn.Module):
    """A small causal transformer with ReLU feed-forwards; pre- or post-norm."""

    def __init__(
        self, width: int, depth: int, outputs: int, *, norm_first: bool, dropout: float, dtype: torch.dtype | None
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(outputs, width)
        self.position = nn.Parameter(torch.randn(SEQUENCE, width) * 0.02)
        self.hidden = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, width * 2, dropout, batch_first=True, norm_first=norm_first)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        self.quantize = Quantize(dtype)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(SEQUENCE), persistent=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Logits at every position."""
        value = self.quantize(self.embedding(value) + self.position)
        for block in self.hidden:
            value = self.quantize(block(value, src_mask=self.mask))
        logits: torch.Tensor = self.quantize(self.head(self.norm(value)))
        return logits


def build_model(
    family: str,
    task: Task,
    *,
    width: int,
    depth: int,
    norm: bool,
    dropout: float,
    precision: str,
    cell: str | None = None,
) -> nn.Module:
    """Build one of ``mlp``, ``cnn``, ``gru``, ``lstm`` and ``transformer`` for a task."""
    dtype = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    outputs = max(task.classes, 1)
    if family == "mlp":
        size = task.inputs[0].numel()
        return Mlp(size, width, depth, outputs, norm=norm, dropout=dropout, dtype=dtype)
    if family == "cnn":
        return Cnn(width // 4, depth, outputs, norm=norm, dropout=dropout, dtype=dtype)
    if family in ("gru", "lstm"):
        return Recurrent(cell or family, width, min(depth, 2), outputs, dropout=dropout, dtype=dtype)
    return Transformer(width, min(depth, 2), outputs, norm_first=norm, dropout=dropout, dtype=dtype)
