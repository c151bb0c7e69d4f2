"""TokenFileSource cuts flat token files into sequences, as slicing the flat array would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.sources.support import plain, rows

from holdfast.errors import ConfigError, SourceChangedError, SourceError, SourceFormatError
from holdfast.sources import TokenFileSource
from holdfast.testing import check_source


def write(path: Path, tokens: NDArray[Any], header: bytes = b"") -> Path:
    path.write_bytes(header + tokens.tobytes())
    return path


def cut(tokens: NDArray[Any], length: int, span: int) -> list[list[int]]:
    return [tokens[start : start + span].tolist() for start in range(0, len(tokens) - span + 1, length)]


@given(
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=4),
    length=st.integers(1, 40),
    targets=st.booleans(),
    header=st.integers(0, 9),
    dtype=st.sampled_from([np.uint16, np.uint32]),
)
def test_any_files_and_length_give_the_slices_of_each_file(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], length: int, targets: bool, header: int, dtype: Any
) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    files = [np.random.default_rng(n).integers(0, 60_000, size).astype(dtype) for n, size in enumerate(sizes)]
    for number, tokens in enumerate(files):
        write(folder / f"{number}.bin", tokens, b"h" * header)
    span = length + 1 if targets else length
    expected = [row for tokens in files for row in cut(tokens, length, span)]
    if not expected:
        with pytest.raises(SourceFormatError, match="long enough"):
            TokenFileSource(folder, length, dtype=dtype, targets=targets, header_bytes=header)
        return
    source = TokenFileSource(folder, length, dtype=dtype, targets=targets, header_bytes=header)
    assert len(source) == len(expected)
    order = np.random.default_rng(0).integers(0, len(expected), 20)
    columns = source.read(order)
    for found, number in zip(plain(columns, "tokens").tolist(), order.tolist(), strict=True):
        assert found == expected[number][:length]
    if targets:
        for found, number in zip(plain(columns, "targets").tolist(), order.tolist(), strict=True):
            assert found == expected[number][1:]


@pytest.mark.parametrize(("size", "what"), [(3, "multiple of the token size"), (2, "long enough"), (0, "long enough")])
def test_files_that_hold_no_sequence_are_refused_when_the_source_is_made(tmp_path: Path, size: int, what: str) -> None:
    (tmp_path / "short.bin").write_bytes(bytes(size))
    with pytest.raises(SourceFormatError, match=what):
        TokenFileSource(tmp_path / "short.bin", 4)


@pytest.mark.parametrize("targets", [False, True])
def test_it_keeps_the_contract(tmp_path: Path, targets: bool) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.bin", np.arange(1000 + 100 * number, dtype=np.uint16))
    source = TokenFileSource(tmp_path / "*.bin", 64, targets=targets)
    check_source(source)
    assert source.shards() is not None


def test_columns_are_int64_unless_the_stored_dtype_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", np.arange(100, dtype=np.uint16))
    assert plain(TokenFileSource(path, 10).read(rows(0)), "tokens").dtype == np.int64
    stored = TokenFileSource(path, 10, out_dtype=np.uint16)
    assert plain(stored.read(rows(0)), "tokens").dtype == np.uint16
    check_source(stored)


def test_the_largest_token_survives(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", np.full(8, 2**32 - 1, dtype=np.uint32))
    assert plain(TokenFileSource(path, 4, dtype="uint32").read(rows(1)), "tokens").tolist() == [[2**32 - 1] * 4]


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": np.float32},
        {"dtype": np.uint32, "out_dtype": np.int32},
        {"length": 0},
        {"header_bytes": -1},
        {"out_dtype": np.float32},
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write(tmp_path / "a.bin", np.arange(100, dtype=np.uint16))
    with pytest.raises(ConfigError):
        TokenFileSource(path, **{"length": 10, **options})


def test_a_file_that_is_no_whole_number_of_tokens_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")
    with pytest.raises(SourceFormatError, match="multiple of the token size") as caught:
        len(TokenFileSource(tmp_path / "a.bin", 1))
    assert str(caught.value.file).endswith("a.bin")


def test_a_file_cut_short_under_the_run_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", np.arange(10_000, dtype=np.uint16))
    source = TokenFileSource(path, 100)
    source.read(rows(0))
    with path.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(SourceChangedError, match="changed while it was being read"):
        source.read(rows(99))


def test_a_file_removed_before_it_is_read_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", np.arange(100, dtype=np.uint16))
    source = TokenFileSource(path, 10)
    path.unlink()
    with pytest.raises(SourceError, match=r"a\.bin"):
        source.read(np.array([0]))


def test_bytes_are_those_of_the_sequences_read(tmp_path: Path) -> None:
    source = TokenFileSource(write(tmp_path / "a.bin", np.arange(100, dtype=np.uint16)), 10)
    source.read(rows(1, 2, 2))
    assert source.counters.counts()[:3] == (3, 0, 60)
