"""TransformedSource: lengths are found once, and a transform that has changed is noticed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sources.support import plain, ragged

from holdfast.errors import ConfigError, SourceChangedError, SourceFormatError, TransformError
from holdfast.sources import ArraySource, PackedSource, Ragged, TransformedSource
from holdfast.sources.function_fingerprint import fingerprint_of
from holdfast.testing import check_source

CHATS = ArraySource({"text": Ragged.from_rows(["hello", "how are you", "", "ok"] * 30), "turn": np.arange(120)})


def to_tokens(sample: Mapping[str, Any]) -> list[int]:
    return [ord(letter) for letter in sample["text"]] + [int(sample["turn"])]


def with_end(sample: Mapping[str, Any]) -> list[int]:
    return [*to_tokens(sample), 0]


def test_it_keeps_the_contract_and_packs(tmp_path: Path) -> None:
    source = TransformedSource(CHATS, to_tokens, index_dir=tmp_path)
    check_source(source)
    assert ragged(source.read(np.array([5])), "tokens").values.tolist() == [*map(ord, "how are you"), 5]
    packed = PackedSource(source, length=32, window=40)
    check_source(packed)
    assert (plain(packed.read(np.arange(len(packed))), "document_ids") >= 0).sum() == source.row_lengths(0, 120).sum()


def test_lengths_are_found_once_and_a_torn_file_is_made_again(tmp_path: Path) -> None:
    calls = []

    def counted(sample: Mapping[str, Any]) -> list[int]:
        calls.append(1)
        return to_tokens(sample)

    first = TransformedSource(CHATS, counted, index_dir=tmp_path, version="1").row_lengths(0, 120)
    made = len(calls)
    again = TransformedSource(CHATS, counted, index_dir=tmp_path, version="1").row_lengths(0, 120)
    assert len(calls) == made
    assert np.array_equal(first, again)
    next(tmp_path.iterdir()).write_bytes(b"torn")
    assert np.array_equal(TransformedSource(CHATS, counted, index_dir=tmp_path, version="1").row_lengths(0, 120), first)
    assert len(calls) == 2 * made


def test_a_changed_transform_is_noticed(tmp_path: Path) -> None:
    before = TransformedSource(CHATS, to_tokens, index_dir=tmp_path)
    before.row_lengths(0, 1)
    after = TransformedSource(CHATS, with_end, index_dir=tmp_path)
    with pytest.raises(SourceChangedError, match="transform has changed"):
        after.row_lengths(0, 1)
    assert before.fingerprint() != after.fingerprint()
    packs = [PackedSource(TransformedSource(CHATS, made), length=32).fingerprint() for made in (to_tokens, with_end)]
    assert packs[0] != packs[1]


def _adding(number: int) -> Callable[[Mapping[str, Any]], list[int]]:
    return lambda sample: [*to_tokens(sample), number]


def test_a_fingerprint_covers_code_closures_and_arguments() -> None:
    made: list[Callable[..., Any]] = [
        _adding(1),
        _adding(2),
        to_tokens,
        with_end,
        functools.partial(to_tokens),
        lambda sample: [2],
    ]
    assert len({fingerprint_of(function) for function in made}) == len(made)
    assert fingerprint_of(_adding(1)) == fingerprint_of(_adding(1))
    before = fingerprint_of(with_end)
    with pytest.MonkeyPatch.context() as patch:  # a function that it calls
        patch.setitem(globals(), "to_tokens", _adding(3))
        assert fingerprint_of(with_end) != before

    def using(sample: Mapping[str, Any], handle: Any = iter([])) -> list[int]:  # noqa: B008  # that is the point
        return []

    with pytest.raises(ConfigError, match="version"):
        fingerprint_of(using)


def test_what_is_no_list_of_tokens_is_refused() -> None:
    with pytest.raises(SourceFormatError, match="list of integers"):
        TransformedSource(CHATS, lambda sample: ["a"]).read(np.array([0]))


def test_what_goes_wrong_in_a_transform_names_the_sample() -> None:
    with pytest.raises(TransformError, match="ZeroDivisionError") as raised:
        TransformedSource(CHATS, lambda sample: [1 // 0], version="1").read(np.array([7]))
    assert raised.value.index == 7
    with pytest.raises(SourceFormatError, match="list of integers"):
        TransformedSource(CHATS, lambda sample: [[1, 2], [3]]).read(np.array([0]))
    with pytest.raises(SourceFormatError, match="64-bit"):
        TransformedSource(CHATS, lambda sample: np.array([2**63 + 5], np.uint64)).read(np.array([0]))
    with pytest.raises(ConfigError, match="function"):
        TransformedSource(CHATS, 5)  # type: ignore[arg-type]
