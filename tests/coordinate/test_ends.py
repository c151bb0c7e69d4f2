"""The digest of all ended chunks: the same in any order of reading, another for any other records."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordinate.ends import Ends
from holdfast.coordinate.records import Dead, Done, from_line, to_line
from holdfast.errors import CoordinationError

Entry = Done | Dead


def line_of(found: Entry) -> str:
    return to_line(found.chunk, found.encode())


def read(ends: Ends, found: Entry) -> None:
    """Add a record as it is read: decoded from its line, each time again."""
    line = line_of(found)
    decoded = from_line(line)
    assert isinstance(decoded, (Done, Dead))
    ends.add(decoded, line)


def digest_of(*entries: Entry) -> str:
    ends = Ends()
    for entry in entries:
        read(ends, entry)
    return ends.digest()


def entry(chunk: int, *, dead: bool = False, payload: str = "") -> Entry:
    return Dead(chunk, "life", 7, 3, payload) if dead else Done(chunk, "life", 7, payload, "")


entries = st.lists(st.builds(entry, st.integers(0, 50), dead=st.booleans()), unique_by=lambda found: found.chunk)


@given(entries, st.randoms(use_true_random=False))
def test_the_order_of_reading_does_not_matter_and_a_record_read_twice_counts_once(
    found: list[Entry], random: Random
) -> None:
    shuffled = [*found, *found[:3]]
    random.shuffle(shuffled)
    assert digest_of(*shuffled) == digest_of(*found)


def test_a_thousand_records_have_a_thousand_digests_each_of_sixteen_bytes() -> None:
    digests = [digest_of(entry(0, payload=str(number))) for number in range(1000)]
    assert len(set(digests)) == 1000
    assert {len(digest) for digest in digests} == {len("1:") + 32}


def test_the_digest_stays_as_long_however_many_records_it_sums_up() -> None:
    digest = digest_of(*(entry(chunk) for chunk in range(100)))
    assert len(digest) == len("100:") + 32
    assert digest.startswith("100:")


@given(entries)
def test_chunks_that_are_retried_leave_the_digest_of_the_others(found: list[Entry]) -> None:
    ends = Ends()
    for one in found:
        read(ends, one)
    ends.forget_dead([one.chunk for one in found] + [99])
    kept = [one for one in found if isinstance(one, Done)]
    assert ends.digest() == digest_of(*kept)
    assert list(ends.entries.values()) == kept


def test_a_chunk_that_was_retried_may_end_in_another_way() -> None:
    ends = Ends()
    given_up, done = entry(4, dead=True), entry(4)
    read(ends, given_up)
    with pytest.raises(CoordinationError, match="two different ends"):
        read(ends, done)
    ends.forget_dead([4])
    read(ends, done)
    assert ends.digest() == digest_of(done)
