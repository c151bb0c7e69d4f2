"""Progress bars: what the first drawing of one means, the others mean as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.debug.ingestion.detection import read_file
from holdfast.debug.ingestion.formats.free_text import FreeTextFormat
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.line_place import find_place
from holdfast.debug.ingestion.progress_bar import find_bar
from holdfast.debug.ingestion.rows import RowCollector

DRAWINGS = ("          ", "#3        ", "#####     ", "##########")


def _bar(epoch: int, done: int, total: int, after: str) -> str:
    drawing = DRAWINGS[min(3, 4 * done // total)]
    return f"Epoch {epoch}: {100 * done // total:3d}%|{drawing}| {done}/{total} [00:01<00:09,  6.71it/s{after}]"


@pytest.mark.parametrize("after", [", loss=0.895, dice=0.204", ", loss=1.25e-3", ", loss=nan, lr=0.1"])
def test_a_bar_is_read_alike_whether_one_like_it_came_before_or_not(after: str) -> None:
    lines = [_bar(epoch, done, 32, after) for epoch in (1, 2) for done in (1, 9, 17, 32)]
    together = RowCollector(Limits())
    reader = FreeTextFormat().reader(together)
    for line in lines:
        assert reader.feed(line)
    alone = RowCollector(Limits())
    for line in lines:
        assert FreeTextFormat().reader(alone).feed(line)
    mine, theirs = together.finish()[0], alone.finish()[0]
    assert [(s.name, s.kind, s.steps.tolist()) for s in mine] == [(s.name, s.kind, s.steps.tolist()) for s in theirs]
    assert all(a.values.tobytes() == b.values.tobytes() for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("line", ["loss 0.5", "9%|### 3/4", "Map: 0%|", "50%|## | 1/2 [00:01<00:01, 2it/s] loss: 0.5"])
def test_what_only_resembles_a_bar_is_none(line: str) -> None:
    assert find_bar(line) is None


def test_a_bar_that_says_only_how_far_it_is_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    bars = "".join(
        f"\r{100 * done // 9:3d}%|{'█' * done}| {done}/9 [00:0{done}<00:01,  3.18it/s]" for done in range(10)
    )
    path.write_text("".join(f"Epoch {epoch}\n{bars}\nLoss: {3.0 / epoch}\n" for epoch in range(1, 20)))
    log = read_file(path)
    assert [(s.name, len(s.values)) for s in log.signals if s.kind == "loss"] == [("Loss", 19)]


@pytest.mark.parametrize(
    ("text", "step", "epoch", "rest"),
    [
        ("loss at Step 3: 0.5", 3.0, None, "loss \x1f: 0.5"),
        ("Total steps 13, step 4", 4.0, None, "Total steps 13, \x1f"),
        ("loss after EPOCH 2/9 iter 1.5M", 1.5e6, 2.0, "loss \x1f \x1f"),
        ("footstep 3 loss 0.5", None, None, "footstep 3 loss 0.5"),
        ("number of epochs 3/9, İter 2 epoch 4", None, 4.0, "number of epochs 3/9, İter 2 \x1f"),
    ],
)
def test_a_counter_is_a_word_of_its_own_and_no_total(
    text: str, step: float | None, epoch: float | None, rest: str
) -> None:
    place = find_place(text)
    assert (place.step, place.epoch, place.text) == (step, epoch, rest)
