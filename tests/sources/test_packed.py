"""PackedSource: every token of every document in exactly one pack, and each pack a pure function of the source."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.sources.support import plain, ragged, through_pickle

from holdfast.errors import ConfigError, SourceChangedError, SourceError, SourceFormatError
from holdfast.sources import ArraySource, ConcatSource, PackedSource, Ragged, concat
from holdfast.sources.document_windows import Piece
from holdfast.sources.window_packs import pack_window
from holdfast.testing import check_source


def documents(lengths: list[int]) -> ArraySource:
    """Documents whose tokens are all different: token t of document d is 1000 d + t + 1."""
    rows = [np.arange(1, length + 1) + 1_000 * number for number, length in enumerate(lengths)]
    return ArraySource({"tokens": Ragged.from_rows(rows, dtype=np.int64)})


drawn_lengths = st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any)


def _first_fit_decreasing(lengths: list[int], capacity: int) -> list[list[int]]:
    """The sizes in each pack, by trying every pack for every piece."""
    pieces = [min(capacity, length - start) for length in lengths for start in range(0, length, capacity)]
    packs: list[list[int]] = []
    for size in sorted(pieces, reverse=True):
        pack = next((pack for pack in packs if sum(pack) + size <= capacity), None)
        if pack is None:
            packs.append(pack := [])
        pack.append(size)
    return packs


@given(drawn_lengths, st.integers(1, 50))
def test_there_are_at_most_as_many_packs_as_first_fit_decreasing_makes(lengths: list[int], capacity: int) -> None:
    packs = pack_window(np.array(lengths), capacity)
    expected = _first_fit_decreasing(lengths, capacity)
    assert -(-sum(lengths) // capacity) <= len(packs) <= len(expected)
    if len(packs) == len(expected):
        sizes = (packs.stop - packs.start).tolist()
        found = [sorted(sizes[low:high]) for low, high in pairwise(packs.offsets.tolist())]
        assert sorted(found) == sorted(map(sorted, expected))


@given(drawn_lengths, st.integers(1, 50), st.binary(min_size=16, max_size=16))
def test_packs_and_the_pieces_in_them_are_in_the_order_of_documents(
    lengths: list[int], capacity: int, key: bytes
) -> None:
    packs = pack_window(np.array(lengths), capacity, key)
    pieces = list(zip(packs.document.tolist(), packs.start.tolist(), strict=True))
    parts = [pieces[low:high] for low, high in pairwise(packs.offsets.tolist())]
    assert parts == sorted(sorted(part) for part in parts)


def test_two_shorter_pieces_replace_one_where_packs_would_be_left_too_empty() -> None:
    # First-fit pairs 900 with 900 and leaves no room for three; 900 + 574 + 574 and so on fill two packs.
    lengths = [900, 900, 574, 574, 574, 574]
    assert len(_first_fit_decreasing(lengths, 2_048)) == 3
    assert len(pack_window(np.array(lengths), 2_048)) == 2


@given(drawn_lengths, st.integers(1, 50), st.integers(1, 20))
def test_every_token_is_in_exactly_one_pack(lengths: list[int], capacity: int, window: int) -> None:
    source = PackedSource(documents(lengths), length=capacity, window=window, labels=True)
    batch = source.read(np.arange(len(source)))
    tokens, document = plain(batch, "tokens"), plain(batch, "document_ids")
    expected = [1_000 * number + token + 1 for number, length in enumerate(lengths) for token in range(length)]
    assert sorted(tokens[document >= 0].tolist()) == expected
    assert not tokens[document < 0].any()
    assert np.array_equal(document[document >= 0], (tokens[document >= 0] - 1) // 1_000)
    labels = plain(batch, "labels")
    begins = (plain(batch, "position_ids") == 0) & (document >= 0)
    assert (labels[begins | (document < 0)] == -100).all()
    assert np.array_equal(labels[~begins & (document >= 0)], tokens[~begins & (document >= 0)])
    for row, bounds in enumerate(ragged(batch, "cu_seqlens")):
        assert (bounds[0], bounds[-1]) == (0, capacity)
        pieces = source.pieces(row)
        assert len(bounds) == len(pieces) + 1 + bool((document[row] < 0).any())
        for piece, start, stop in zip(pieces, bounds[:-1], bounds[1:], strict=False):
            assert stop - start == piece.stop - piece.start
            assert tokens[row, start] == 1_000 * piece.document + piece.start + 1
            assert row in source.samples_of(piece.document)


@given(drawn_lengths, st.integers(1, 50), st.integers(1, 20), st.integers(1, 5))
def test_every_epoch_has_every_token_once_in_as_many_packs_as_full_as_before(
    lengths: list[int], capacity: int, window: int, epoch: int
) -> None:
    source = PackedSource(documents(lengths), length=capacity, window=window)
    first, later = (source.read_at(np.arange(len(source)), np.full(len(source), number)) for number in (0, epoch))
    for name in ("tokens", "document_ids"):
        assert sorted(plain(first, name).ravel().tolist()) == sorted(plain(later, name).ravel().tolist())
    filled = [(plain(batch, "document_ids") >= 0).sum(1).tolist() for batch in (first, later)]
    assert sorted(filled[0]) == sorted(filled[1])
    tokens, document = plain(later, "tokens"), plain(later, "document_ids")
    assert np.array_equal(document[document >= 0], (tokens[document >= 0] - 1) // 1_000)
    mixed = np.arange(len(source)) % 2 * epoch
    together = source.read_at(np.arange(len(source)), mixed)
    assert np.array_equal(plain(together, "tokens"), np.where(mixed[:, None] > 0, tokens, plain(first, "tokens")))
    for row in range(len(source)):
        found = source.pieces(row, epoch)
        assert [piece.document for piece in found] == list(dict.fromkeys(d for d in document[row].tolist() if d >= 0))
        assert all(row in source.samples_of(piece.document, epoch) for piece in found)


def test_neighbours_differ_from_epoch_to_epoch_unless_told_not_to() -> None:
    lengths = np.random.default_rng(5).integers(1, 40, 500).tolist()
    source = PackedSource(documents(lengths), length=64, window=250)

    def neighbours(epoch: int) -> set[tuple[int, ...]]:
        return {tuple(sorted(p.document for p in source.pieces(row, epoch))) for row in range(len(source))}

    assert len(neighbours(0) & neighbours(1)) < len(source) // 4
    assert len(neighbours(1) & neighbours(2)) < len(source) // 4
    fixed = PackedSource(documents(lengths), length=64, window=250, seed=None)
    assert fixed.pieces(3, 0) == fixed.pieces(3, 7)


@given(drawn_lengths, st.integers(1, 50), st.data())
def test_masked_documents_leave_everything_else_in_its_place(lengths: list[int], capacity: int, data: Any) -> None:
    masked = data.draw(st.sets(st.integers(0, len(lengths) - 1), max_size=5))
    whole, without = (
        PackedSource(documents(lengths), length=capacity, window=7, labels=True, masked=chosen)
        for chosen in ((), masked)
    )
    assert whole.fingerprint() == without.fingerprint()
    before, after = (source.read(np.arange(len(source))) for source in (whole, without))
    gone = np.isin(plain(before, "document_ids"), list(masked))
    for name, instead in (("tokens", 0), ("document_ids", -1), ("labels", -100)):
        assert np.array_equal(plain(after, name), np.where(gone, instead, plain(before, name)))
    assert np.array_equal(plain(after, "position_ids"), plain(before, "position_ids"))
    assert np.array_equal(ragged(after, "cu_seqlens").values, ragged(before, "cu_seqlens").values)


class Lengths(ArraySource):
    """Documents whose lengths are known without reading them."""

    shift = 0

    def row_lengths(self, start: int, stop: int) -> NDArray[np.int64]:
        return ragged(self.read(np.arange(start, stop)), "tokens").row_lengths + self.shift


def test_lengths_that_a_source_knows_are_not_read_and_must_hold() -> None:
    lengths = np.random.default_rng(1).integers(0, 90, 300).tolist()
    plain_source = documents(lengths)
    known = Lengths({"tokens": plain_source.read(np.arange(300))["tokens"]})
    packed, expected = (PackedSource(source, length=64, window=50) for source in (known, plain_source))
    check_source(packed, same_as=expected)
    assert packed.padding_share == expected.padding_share
    known.shift = 1
    with pytest.raises(SourceChangedError, match="length of a document differs"):
        PackedSource(known, length=64, window=50).read(np.arange(3))


@pytest.mark.parametrize("labels", [False, True])
def test_it_keeps_the_contract_of_a_source(labels: bool) -> None:
    lengths = np.random.default_rng(1).integers(0, 90, 300).tolist()
    source = PackedSource(documents(lengths), length=64, window=32, labels=labels)
    check_source(source)
    assert len(source.shards() or ()) == 10


def test_large_windows_leave_little_padding() -> None:
    lengths = np.minimum(np.random.default_rng(2).lognormal(6, 1, 8_192), 30_000).astype(np.int64)
    packs = [pack_window(part, 2_048) for part in np.split(lengths, 2)]
    room = sum(len(part) for part in packs) * 2_048
    assert 1 - lengths.sum() / room <= 0.003


def test_packs_are_counted_once_where_a_folder_is_given(tmp_path: Path) -> None:
    made = documents([5, 9, 30, 2, 7])
    first = PackedSource(made, length=16, window=2, index_dir=tmp_path / "packs")
    count = len(first)
    made.close()
    again = PackedSource(made, length=16, window=2, index_dir=tmp_path / "packs")
    before = made.counters.counts().samples_local
    assert len(again) == count
    assert made.counters.counts().samples_local - before <= 5 + 16  # the fingerprint's, and no pass
    next((tmp_path / "packs").iterdir()).write_bytes(b"torn")
    assert len(PackedSource(made, length=16, window=2, index_dir=tmp_path / "packs")) == count
    assert len(through_pickle(again)) == count


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        PackedSource(documents([1]), length=0)
    with pytest.raises(SourceFormatError, match="lists of integers"):
        len(PackedSource(ArraySource({"tokens": np.arange(5)}), length=4))


# Laid end to end and cut.


@given(drawn_lengths, st.integers(1, 30), st.integers(1, 9))
def test_cut_documents_are_all_tokens_in_order_but_an_incomplete_last_sample(
    lengths: list[int], capacity: int, window: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(concat, "DOCUMENTS_AT_ONCE", window)
        source = ConcatSource(documents(lengths), length=capacity)
    tokens = [1_000 * number + token + 1 for number, length in enumerate(lengths) for token in range(length)]
    assert len(source) == len(tokens) // capacity
    batch = source.read(np.arange(len(source))[::-1].copy())
    expected = np.array(tokens[: len(source) * capacity]).reshape(-1, capacity)[::-1]
    assert np.array_equal(plain(batch, "tokens"), expected)
    assert np.array_equal(plain(batch, "document_ids"), (expected - 1) // 1_000)


def test_documents_of_several_sources_are_cut_as_one_and_keep_the_contract(tmp_path: Path) -> None:
    parts = [documents([5, 0, 9, 30]), documents([2, 7, 11])]
    source = ConcatSource(parts, length=6, index_dir=tmp_path)
    assert len(source) == 64 // 6
    check_source(source)
    assert plain(source.read(np.array([7])), "document_ids").tolist() == [[3, 3, 4, 4, 5, 5]]
    assert source.pieces(7) == [(3, 28, 30), (4, 0, 2), (5, 0, 2)]
    assert source.samples_of(3) == [2, 3, 4, 5, 6, 7]
    assert source.samples_of(1) == []
    assert ConcatSource(parts).pieces(0) == []
    with pytest.raises(ConfigError, match="packed or cut to a length"):
        ConcatSource(parts).samples_of(0)


@pytest.mark.parametrize("masked", [np.array([False, True, False]), "12", [1.9], 1, [[1]], [3], [-1], [True]])
def test_what_are_no_numbers_of_documents_is_not_masked(masked: Any) -> None:
    source = ArraySource({"tokens": Ragged.from_rows([[1, 2, 3], [4, 5], [6, 7, 8, 9]])})
    with pytest.raises((ConfigError, SourceError)):
        PackedSource(source, length=4, masked=masked)


@pytest.mark.parametrize(
    "options",
    [
        {"length": 2.5},
        {"length": True},
        {"length": "4"},
        {"length": 0},
        {"length": 4, "padding": 1.5},
        {"length": 4, "padding": None},
        {"length": 4, "window": 0},
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused_at_once(options: dict[str, Any]) -> None:
    source = ArraySource({"tokens": Ragged.from_rows([[1, 2, 3]])})
    with pytest.raises(ConfigError, match="must be"):
        PackedSource(source, **options)
    with pytest.raises(ConfigError, match="Source"):
        PackedSource([[1, 2]], length=4)  # type: ignore[arg-type]


def test_padding_that_is_no_token_is_refused_whether_a_pack_is_full_or_not() -> None:
    tokens = Ragged(np.arange(4, dtype=np.uint16), np.array([0, 4]))
    with pytest.raises(ConfigError, match="padding"):
        PackedSource(ArraySource({"tokens": tokens}), length=4, padding=70_000).read(np.array([0]))


def test_tokens_that_a_label_cannot_hold_are_refused() -> None:
    tokens = Ragged(np.array([1, 2**63 + 5], dtype=np.uint64), np.array([0, 2]))
    with pytest.raises(SourceFormatError, match="64-bit"):
        PackedSource(ArraySource({"tokens": tokens}), length=4, labels=True).read(np.array([0]))


def test_epochs_are_checked_like_indices() -> None:
    packed = PackedSource(ArraySource({"tokens": Ragged.from_rows([[1, 2], [3], [4, 5]])}), length=2)
    one = packed.read_at([0], [0])  # type: ignore[arg-type]  # lists do as well
    assert plain(one, "tokens").tolist() == plain(packed.read(np.array([0])), "tokens").tolist()
    with pytest.raises(ConfigError, match="per sample"):
        packed.read_at(np.array([0, 1]), np.array([0]))
    with pytest.raises(ConfigError, match="epoch"):
        packed.pieces(0, epoch=-1)
    with pytest.raises(ConfigError, match="epoch"):
        packed.samples_of(0, epoch=-1)


def test_no_damage_to_kept_counts_moves_a_token(tmp_path: Path) -> None:
    rows = [list(range(length)) for length in (3, 2, 4, 1, 5, 2, 7, 3, 9, 1, 2)]
    source = ArraySource({"tokens": Ragged.from_rows(rows)})

    def packed(window: int = 2) -> list[list[Piece]]:
        made = PackedSource(source, length=4, window=window, index_dir=tmp_path)
        return [made.pieces(index) for index in range(len(made))]

    sound = packed()
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        assert packed() == sound
    for size in range(0, len(content), 7):
        file.write_bytes(content[:size])
        assert packed() == sound
    other = packed(window=3)
    (second,) = set(tmp_path.iterdir()) - {file}
    first_bytes, second_bytes = file.read_bytes(), second.read_bytes()
    file.write_bytes(second_bytes)
    second.write_bytes(first_bytes)
    assert packed() == sound
    assert packed(window=3) == other


def test_a_folder_of_indexes_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    source = ArraySource({"tokens": Ragged.from_rows([[1, 2, 3]])})
    with pytest.raises(SourceError, match="folder of indexes"):
        len(PackedSource(source, length=4, index_dir=tmp_path / "file"))
