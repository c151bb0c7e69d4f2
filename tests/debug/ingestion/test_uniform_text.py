"""Text read in blocks gives what reading it line by line gives, whatever stands in it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.debug.detectors.series import falling_loss
from tests.debug.ingestion.console_styles import STYLES, write

from holdfast.debug.ingestion import read_path, text_format
from holdfast.debug.ingestion.formats.free_text import FreeTextFormat
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.ingestion.uniform_text import read_uniform

ODD = [
    "eval at step {n}: val loss 2.25",
    "WARNING: something odd happened",
    'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: x',
    "step {n} loss nan lr 1.0e-04 grad_norm inf",
    "step {n} loss 1,234.5 lr 1.0e-04 grad_norm 0.5",
    "step {n} loss",
    "",
    "step 5 loss 9.5 lr 1.0e-04 grad_norm 0.5",
    "step {n} loss 2.5 lr 1.0e-04 grad_norm 0.5 extra",
    "step {n} gloss 2.5 lr 1.0e-04 grad_norm 0.5",
    "OVERFLOW! skipping step, reducing loss scale to 512.0",
]


def content(path: Path) -> list[object]:
    return [_described(log) for log in read_path(path)]


def _described(log: RunLog) -> object:
    signals = {
        (signal.name, signal.kind, signal.layer): (str(signal.steps.tolist()), str(signal.values.tolist()))
        for signal in log.signals
    }
    return log.format, signals, log.coverage, log.part, [str(event) for event in log.events], log.notes


def both_ways(path: Path) -> tuple[list[object], list[object]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_format, "MIN_BLOCK_BYTES", 0)
        blocks = content(path)
        patch.setattr(text_format, "MIN_BLOCK_BYTES", 1 << 40)
        return blocks, content(path)


@pytest.mark.parametrize("style", STYLES)
def test_every_style_reads_the_same_in_blocks(tmp_path: Path, style: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(write(style, falling_loss(200).tolist()), encoding="utf-8")
    blocks, lines = both_ways(path)
    assert blocks == lines


@settings(max_examples=40)
@given(
    odd=st.lists(st.tuples(st.integers(0, 199), st.sampled_from(ODD)), max_size=6),
    prefix=st.sampled_from(["", "INFO ", "2024-05-17 10:00:{s:02d} INFO ", "[{s:02d}:11:12] "]),
    width=st.sampled_from(["{n}", "{n:6d}", "{n}/200"]),
    end=st.sampled_from(["\n", ""]),
)
def test_lines_unlike_the_others_are_read_as_they_always_are(
    odd: list[tuple[int, str]], prefix: str, width: str, end: str
) -> None:
    lines = [
        prefix.format(s=n % 60) + f"step {width.format(n=n)} loss {value:.4f} lr {1e-3 / (n + 1):.2e} grad_norm 0.5"
        for n, value in enumerate(falling_loss(200))
    ]
    for place, line in odd:
        lines.insert(place, line.format(n=place))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        path.write_text("\n".join(lines) + end, encoding="utf-8")
        blocks, by_line = both_ways(path)
        assert blocks == by_line


def test_a_block_of_like_lines_is_taken_at_once() -> None:
    block = "".join(f"step {n} loss {3 / (n + 1):.4f}\n" for n in range(500)).encode()
    table = read_uniform(block, FreeTextFormat().reader(RowCollector(Limits())))
    assert table is not None
    (segment,) = table.segments
    assert (segment.begin, segment.end, list(segment.fields)) == (0, 500, ["loss"])


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"step {n} loss {3 / (n + 1):.4f}\n" for n in range(500)))
    seen: list[int] = []
    read_path(path, progress=seen.append)
    assert sum(seen) == path.stat().st_size
