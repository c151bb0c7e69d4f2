"""CRC-32 of parts, folded together."""

from __future__ import annotations

import zlib
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.checksum import RecordCheck, combine, covers, crc32, gaps


@given(first=st.binary(max_size=300), second=st.binary(max_size=300))
def test_combine_gives_the_checksum_of_any_two_strings_joined(first: bytes, second: bytes) -> None:
    assert combine(crc32(first), crc32(second), len(second)) == zlib.crc32(first + second)


@given(data=st.binary(min_size=1, max_size=500), cuts=st.lists(st.integers(0, 500)), seed=st.randoms())
def test_pieces_in_any_order_give_the_checksum_of_the_whole(data: bytes, cuts: list[int], seed: Random) -> None:
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    pieces = list(pairwise(edges))
    seed.shuffle(pieces)
    check = RecordCheck(zlib.crc32(data), len(data))
    for start, end in pieces:
        check.add(start, end - start, crc32(data[start:end]))
    assert check.result() == check.expected


def test_a_missing_or_doubled_piece_gives_no_checksum() -> None:
    check = RecordCheck(1, 10)
    check.add(0, 4, 5)
    assert check.result() is None
    check.add(4, 6, 5)
    check.add(4, 6, 5)
    assert check.result() is None


@given(length=st.integers(0, 60), ranges=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10))))
def test_gaps_and_ranges_together_cover_every_byte(length: int, ranges: list[tuple[int, int]]) -> None:
    inside = [(start, size) for start, size in ranges if start + size <= length]
    missing = gaps(inside, length)
    touched = {place for start, size in inside for place in range(start, start + size)}
    untouched = {place for start, size in missing for place in range(start, start + size)}
    assert touched | untouched == set(range(length))
    assert not touched & untouched
    assert covers(missing, length) == (not touched)
