"""Broken and hostile logs: they cost bounded work, run nothing, and end in a verdict or in one typed error."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.debug import MLSystemsDebugger, Reporter, Verdict
from holdfast.debug.ingestion import Limits, LogIngestor, read_file
from holdfast.debug.ingestion.detection import default_formats
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.online import OnlineDebugger, OnlineOptions
from holdfast.errors import UnreadableLogError

DEBUGGER = MLSystemsDebugger(plugins=False)


def survives(path: Path) -> None:
    """Either a report, in every format, or the one typed error."""
    try:
        report = DEBUGGER.debug(path)
    except UnreadableLogError:
        return
    for form in ("text", "json", "markdown", "html", "junit"):
        Reporter().render(report, form)


@given(st.binary(max_size=3000))
def test_any_bytes_give_a_report_or_the_typed_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("junk") / "x"
    path.write_bytes(data)
    survives(path)


MAGICS = [
    b":W&B\xe1\xbe\x00",
    b'\x18\0\0\0\0\0\0\0\xa3\x7fK"brain.Event:2',
    b"\x80\x02}q\0(X\x09\0\0\0pg_configentries",
    b"\x1f\x8b\x08",
]


@given(st.sampled_from(MAGICS), st.binary(max_size=600))
def test_any_bytes_after_a_known_beginning_do_too(
    tmp_path_factory: pytest.TempPathFactory, magic: bytes, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("junk") / "events.out.tfevents.1"
    path.write_bytes(magic + data)
    survives(path)


@given(st.text(alphabet=st.sampled_from('{}[]",:0123456789.eE+-naifNI|= \n\tstepoch_l'), max_size=1500))
def test_any_text_of_log_like_characters_does_too(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("junk") / "x.log"
    path.write_text(text)
    survives(path)


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "ran"
    path = tmp_path / "_dump_0"
    data = {"pg_config": {}, "nccl_version": "1", "entries": [Bomb(marker)]}
    path.write_bytes(pickle.dumps(data, protocol=protocol))
    with pytest.raises(UnreadableLogError):
        read_file(path)
    assert not marker.exists()


def test_a_line_of_a_million_characters_is_cut_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    good = "".join(f"iter {n}: loss {3 - n / 10:.3f}, time 1.00ms, mfu 1.00%\n" for n in range(10))
    path.write_text(good + "loss=" + "9" * 1_000_000 + "\n" + "x" * 1_000_000 + "\n" + good.replace("iter ", "iter 1"))
    (log,) = LogIngestor().read(path)
    (loss,) = [signal for signal in log.signals if signal.name == "loss"]
    assert len(loss.values) == 20


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 50_000 + "]" * 50_000])
def test_deep_json_is_refused(tmp_path: Path, text: str) -> None:
    for name in ("deep.json", "deep.jsonl"):
        path = tmp_path / name
        path.write_text(text + "\n")
        survives(path)


def test_a_gzip_bomb_is_read_only_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb") as stream:
        stream.write(b'{"loss": [' + b"1," * (4 << 20) + b"1]}")
    limits = Limits(document_bytes=1 << 20)
    with pytest.raises(UnreadableLogError, match="more than"):
        read_file(path, limits)
    assert len(list(LogFile(path, limits).lines())) <= 2


def test_a_zip_archive_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"\0" * (8 << 20))
    with pytest.raises(UnreadableLogError):
        read_file(path)


def test_a_million_distinct_names_are_cut_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "wide.jsonl"
    path.write_text("".join(json.dumps({"step": n, f"loss_{n}": 1.0, "loss": 2.0}) + "\n" for n in range(3000)))
    log = read_file(path, Limits(signals=100))
    assert len(log.signals) <= 100


def test_more_rows_than_the_limit_are_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"step": n, "loss": 1.0 + n}) + "\n" for n in range(500)))
    log = read_file(path, Limits(rows=100))
    assert len(log.signals[0].values) == 100
    assert any("only the first 100" in note for note in log.notes)


def test_huge_numbers_and_overlong_digits_are_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "huge.jsonl"
    big = "9" * 5000
    lines = [f'{{"step": {n}, "loss": {big if n == 5 else 1e308}}}' for n in range(9)]
    path.write_text("\n".join(lines) + "\n")
    survives(path)


LARGE: dict[str, Callable[[int], float]] = {
    "a jump": lambda n: 3.0 - n / 100 if n < 50 else 1e308,
    "a ramp": lambda n: 10.0 ** (3.05 * n),
    "both signs": lambda n: (-1) ** n * 1.5e308,
    "a fall": lambda n: 1.0 / (n + 1) if n < 60 else -1.7e308,
}


@pytest.mark.parametrize("key", ["loss", "val_loss", "grad_norm", "reward", "lr", "accuracy", "perplexity"])
@pytest.mark.parametrize("how", LARGE)
def test_numbers_whose_sums_overflow_fail_no_detector(how: str, key: str) -> None:
    rows = [{"step": n, "loss": 2 / (n + 1) + 0.3, key: LARGE[how](n)} for n in range(100)]
    (run,) = DEBUGGER.debug(rows).runs  # NumPy warns of an overflow, and a warning is an error here.
    assert run.notes == ()
    assert key != "loss" or run.verdict is not Verdict.HEALTHY


@pytest.mark.timeout(100)  # a second or two where nothing backtracks
@pytest.mark.parametrize("form", default_formats(), ids=lambda form: form.name)
def test_no_format_takes_quadratic_time_over_one_long_line(tmp_path: Path, form: Any) -> None:
    """Each reader is given lines built to make a careless pattern backtrack; the test's own timeout is the judge."""
    path = tmp_path / "line.log"
    for piece in (
        "a " * 30_000, "loss " * 12_000, "1" * 60_000, "| " * 30_000, "epoch 1 " * 8_000, "a=" * 30_000, "{'" * 20_000,
        # Free text is read up to 8,192 characters a line.
        "1" * 7_000 + ":5", "a_" * 3_500, " " * 7_000, "1," * 3_500, "-1e" * 2_300, "x: (1) " * 1_000, "12:12 " * 1_100,
    ):  # fmt: skip
        begun = ("", "step 1 loss ", "iteration 1/ 9 | ", "| epoch 1 | ", "{'loss': ", "[step=1/2]\n   a")
        path.write_text("".join(f"{line}{piece}:5\n" for line in begun))
        form.sniff(LogFile(path))


@pytest.mark.parametrize("piece", ["1" * 1_000_000 + "x", " " * 1_000_000, ":1." * 300_000, "{" * 1_000_000])
def test_a_line_that_is_nearly_json_costs_no_more_than_it_is_long(tmp_path: Path, piece: str) -> None:
    path = tmp_path / "x.jsonl"
    good = "".join(f'{{"step": {n}, "loss": {3 - n / 50}}}\n' for n in range(20))
    path.write_text(good + f'{{"step": 21, "loss": {piece}}}\n' + good)
    survives(path)


def test_a_log_that_is_followed_holds_no_more_than_its_window_of_a_hostile_writer(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"step": n, f"loss_{n}": 1.0, "loss": 2.0}) + "\n" for n in range(3000)))
    with path.open("a") as stream:
        stream.write("x" * (9 << 20))  # A line that never ends.
    follower = OnlineDebugger(DEBUGGER, paths=[path], options=OnlineOptions(window=128))
    report = follower.look()
    assert report is not None
    assert max(len(signal.values) for signal in report.runs[0].signals) <= 256


def test_names_from_a_log_cannot_script_the_page(tmp_path: Path) -> None:
    name = "loss</svg><script>alert(1)</script>"
    path = tmp_path / "x.jsonl"
    rows = [{"step": n, name: 3.0 - n / 50 if n < 40 else float("nan")} for n in range(80)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "<script>alert" not in Reporter().render(DEBUGGER.debug(path), "html")


def test_a_named_pipe_and_a_missing_path_are_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path / "missing"):
        with pytest.raises(UnreadableLogError):
            LogIngestor().ingest(path)


NAMES = st.sampled_from(
    ["step", "loss", "values", "log_history", "entries", "pg_config", "epoch", "history", "nan", "rank", "x"]
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("nan"))
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(NAMES, inner, max_size=6)),
    max_leaves=40,
)


@given(DOCUMENTS)
def test_any_json_document_gives_a_report_or_the_typed_error(
    tmp_path_factory: pytest.TempPathFactory, document: object
) -> None:
    path = tmp_path_factory.mktemp("junk") / "x.json"
    path.write_text(json.dumps(document))
    survives(path)


@given(st.lists(st.dictionaries(NAMES, SCALARS, max_size=6), min_size=1, max_size=12))
def test_any_json_lines_and_any_table_of_them_do_too(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]
) -> None:
    folder = tmp_path_factory.mktemp("junk")
    (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = sorted({name for row in rows for name in row}) or ["step"]
    lines = [",".join(names), *(",".join(str(row.get(name, "")) for name in names) for row in rows)]
    (folder / "x.csv").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    survives(folder / "x.jsonl")
    survives(folder / "x.csv")


PIECES = st.sampled_from(
    [
        "loss 1.0", "| epoch 1 |", "nan", "inf", "step 3/4", "iteration 5/ 6 |", "[step=1]", "1e999",
        "    a=1", "lr: 0.1",
        "{'loss': 1, 'epoch': 1}", "Epoch(train) [1][2/3]", "| a | 1 |", "OVERFLOW!", "\x1b[31m",
        "Traceback (most recent call last):", "validation loss at iteration",
    ]
)  # fmt: skip


@given(st.lists(PIECES, max_size=60), st.sampled_from([" ", "\n", " | ", "\r"]))
def test_any_mixture_of_pieces_of_logs_does_too(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], glue: str
) -> None:
    path = tmp_path_factory.mktemp("junk") / "x.log"
    path.write_text(glue.join(pieces))
    survives(path)
