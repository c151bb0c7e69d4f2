"""Large JSON lines read in blocks: the same as line by line, whatever the lines look like."""

from __future__ import annotations

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.debug.ingestion import json_blocks
from holdfast.debug.ingestion.formats import json_lines
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.uniform_lines import uniform_batch
from holdfast.debug.types import Signal
from holdfast.errors import UnreadableLogError

NAMES = ["loss", "grad_norm", "lr", "eval_loss", "note", "acc"]
NUMBERS = st.one_of(
    st.floats(-1e9, 1e9, allow_subnormal=False),
    st.integers(-(10**12), 10**12),
    st.sampled_from([0.0, math.nan, math.inf, -math.inf]),
)
CELLS = st.one_of(NUMBERS, NUMBERS, st.none(), st.sampled_from(["nan", "NA", "1.5", "warm, up", 'a "b"', True]))
ODD = st.sampled_from(
    ["", "   ", "not json", "{", '{"loss": }', '{"step": 3, "loss": {"x": 1.5}}', "[1, 2]", '{"a": [1, 2]}',
     '{"step": 1, "loss": nan}', '{"step": 2, "loss": -inf, "lr": 1.}', '{"loss": 1.0, "step": 9}']
)  # fmt: skip


@st.composite
def logs(draw: st.DrawFn) -> str:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    # Most columns hold one sort of value, as real ones do; some hold anything.
    sorts = {name: draw(st.sampled_from([NUMBERS, NUMBERS, st.one_of(NUMBERS, st.none()), CELLS])) for name in names}
    separators = draw(st.sampled_from([(", ", ": "), (",", ":")]))
    lines = []
    for step in range(draw(st.integers(4, 24))):
        record: dict[str, Any] = {"step": step, **{name: draw(sorts[name]) for name in names}}
        lines.append(json.dumps(record, separators=separators))
    for place, line in draw(st.lists(st.tuples(st.integers(0, 30), ODD), max_size=2)):
        lines.insert(place, line)
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines) + draw(st.sampled_from(["\n", "", '\n{"step": 99, "lo']))


def read(text: str, *, quick: bool) -> tuple[dict[Any, Any], set[str]] | None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "log.jsonl"
        path.write_bytes(text.encode())
        patch.setattr(json_lines, "_QUICK_FROM", 0 if quick else 1 << 60)
        patch.setattr(json_blocks, "_BLOCK", 256)
        try:
            log = json_lines.JsonLinesFormat().read(LogFile(path))
        except UnreadableLogError:
            return None
    return {(s.name, s.layer, s.replica): comparable(s) for s in log.signals}, set(log.config)


def comparable(signal: Signal) -> tuple[Any, ...]:
    told = {name: value for name, value in signal.metadata.items() if name != "missing_steps"}
    missing = np.asarray(signal.metadata.get("missing_steps", [])).tolist()
    return signal.steps.tolist(), [repr(value) for value in signal.values.tolist()], repr(sorted(told.items())), missing


@given(text=logs())
def test_blocks_give_what_lines_give(text: str) -> None:
    assert read(text, quick=True) == read(text, quick=False)


@pytest.mark.soak
@given(text=logs())
def test_blocks_of_many_more_logs_give_what_lines_give(text: str) -> None:
    assert read(text, quick=True) == read(text, quick=False)


def test_the_four_meanings_outlive_the_quick_way() -> None:
    rows = [{"step": n, "loss": 2.0, "grad_norm": 1.0, "eval_loss": None, "acc": 0.0} for n in range(40)]
    rows[30]["loss"] = math.nan
    rows[31]["grad_norm"] = None
    text = "".join(json.dumps(row) + "\n" for row in rows)
    found = read(text, quick=True)
    assert found is not None
    signals = {name: value for (name, _, _), value in found[0].items()}
    assert signals["loss"][1][30] == "nan"
    assert len(signals["grad_norm"][0]) == 39
    assert "every value is a placeholder" in signals["eval_loss"][2]
    assert set(signals["acc"][1]) == {"0.0"}


def test_numbers_that_turn_into_words_in_a_later_block_stay_in_the_column() -> None:
    lines = [json.dumps({"step": n, "loss": 3.0 - n / 50}) for n in range(60)]
    lines += [json.dumps({"step": n, "loss": "NaN"}) for n in range(60, 90)]
    found = read("\n".join(lines) + "\n", quick=True)
    assert found is not None
    assert len(found[0]["loss", None, None][0]) == 60


@pytest.mark.parametrize(
    "block",
    [b'{"a": 1}\n{"b": 1}\n', b'{"a": 1}\n{"a": 1, "b": 2}\n', b'{"a": 1}\n{"a": 1\n', b'{"a": 1}\nx{"a": 1}\n',
     b'{"a": 1, "a": 2}\n', b'{"a": {"b": 1}}\n', b'{"a": [1]}\n', b'{"a": true}\n', b'{"a": "x\\n"}\n', b"\n", b"",
     b'{"a": 1}}\n', b'{"a": "\xff"}\n', b'{"a": 1 2}\n', b'{"a": 0x10}\n'],
)  # fmt: skip
def test_a_block_whose_lines_differ_is_left_to_the_parser(block: bytes) -> None:
    assert uniform_batch(block) is None


def test_lines_alike_are_read_as_a_table() -> None:
    batch = uniform_batch(b'{"step":1,"mode":"train","loss":NaN}\r\n\r\n{"step":2,"mode":"eval","loss":-1.5e-3}\r\n')
    assert batch is not None
    assert batch.to_pydict()["step"] == [1.0, 2.0]
    assert batch.to_pydict()["mode"] == ["train", "eval"]
    assert batch.to_pydict()["loss"][1] == -1.5e-3


def test_settings_among_the_records_are_settings_on_both_ways() -> None:
    text = '{"config": {"lr": 0.1, "model": "x"}}\n' + "".join(f'{{"step": {n}, "loss": 1.5}}\n' for n in range(30))
    for quick in (True, False):
        found = read(text, quick=quick)
        assert found is not None
        assert {"lr", "model"} <= found[1]
        assert set(found[0]) == {("loss", None, None)}


def test_one_broken_line_costs_one_block_and_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"step": n, "loss": 3.0 - n / 200}) for n in range(400)]
    lines[200] = lines[200][:9] + lines[200]  # Cut short by a crash; the next run wrote on.
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(json_blocks, "_BLOCK", 1024)
    singly: list[int] = []
    line_by_line = json_blocks._line_by_line

    def counted(block: bytes) -> Any:
        singly.append(len(block))
        return line_by_line(block)

    monkeypatch.setattr(json_blocks, "_line_by_line", counted)
    builder = json_blocks.read_blocks(LogFile(path))
    assert builder is not None
    assert (builder.count, builder.bad, len(singly)) == (399, 1, 1)


def test_progress_is_told_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_blocks, "_BLOCK", 1_000)
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f'{{"step": {step}, "loss": 1.5}}\n' for step in range(500)))
    told: list[int] = []
    assert json_blocks.read_blocks(LogFile(log, Limits(), told.append)) is not None
    assert len(told) > 5
    assert sum(told) == log.stat().st_size
