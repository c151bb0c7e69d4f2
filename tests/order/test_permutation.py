"""A permutation is a keyed bijection of 0 … n-1, computed in both directions, as good as a drawn one."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2
from tests.strategies import lengths, seeds

from holdfast.errors import ConfigError, OrderError
from holdfast.order import Permutation, derive_key
from holdfast.order.cycle import Cycle
from holdfast.order.numbers import Ordinals
from holdfast.order.permutation import TABLE_LIMIT, forward_each

Int64 = NDArray[np.int64]

HUGE = (10**9, 10**9 + 7, 10**12, 2**40 - 1, 2**40, 2**40 + 1, 2**62 - 1, 2**62)


@given(lengths(), seeds())
def test_every_index_stands_somewhere_exactly_once(n: int, seed: int) -> None:
    found = Permutation(n, seed).forward(np.arange(n))
    assert np.array_equal(np.sort(found), np.arange(n))


@pytest.mark.parametrize("n", [*range(1, 130), 65_535, 65_536, 65_537, 131_071, 131_073, 1_000_003])
def test_a_bijection_at_every_small_length_and_around_the_end_of_the_table(n: int) -> None:
    permutation = Permutation(n, "edges")
    found = permutation.forward(np.arange(n))
    assert np.array_equal(np.bincount(found, minlength=n), np.ones(n, dtype=np.int64))
    assert np.array_equal(permutation.inverse(found), np.arange(n))


@given(lengths(most=10**6), seeds(), st.data())
def test_inverse_undoes_forward_and_forward_undoes_inverse(n: int, seed: int, data: st.DataObject) -> None:
    permutation = Permutation(n, seed)
    places = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=50)), dtype=np.int64)
    assert np.array_equal(permutation.inverse(permutation.forward(places)), places)
    assert np.array_equal(permutation.forward(permutation.inverse(places)), places)


@given(st.sampled_from(HUGE), seeds(), st.integers(0, 2**32))
def test_sampled_at_huge_lengths_it_is_a_bijection_into_range(n: int, seed: int, draw: int) -> None:
    permutation = Permutation(n, seed)
    places = np.unique(np.random.default_rng(draw).integers(0, n, 2_000))
    places = np.union1d(places, [0, 1, n - 2, n - 1])
    found = permutation.forward(places)
    assert found.min() >= 0
    assert found.max() < n
    assert len(np.unique(found)) == len(places)
    assert np.array_equal(permutation.inverse(found), places)


@given(st.integers(65_537, 2**62), seeds())
def test_any_length_beyond_the_table_is_inverted(n: int, seed: int) -> None:
    permutation = Permutation(n, seed)
    places = np.linspace(0, n - 1, 97).astype(np.int64).clip(0, n - 1)
    assert np.array_equal(permutation.inverse(permutation.forward(places)), places)


@pytest.mark.parametrize("n", [7, 100_000, 10**12])
def test_shape_is_kept_from_scalars_to_matrices(n: int) -> None:
    permutation = Permutation(n, 1)
    matrix = np.arange(6).reshape(2, 3)
    assert permutation.forward(matrix).shape == (2, 3)
    assert permutation.forward(3).shape == ()
    assert int(permutation.forward(3)) == int(permutation.forward([3])[0])
    assert permutation.forward(np.empty(0, dtype=np.int64)).shape == (0,)


@pytest.mark.parametrize("n", [10, 10**6])
@pytest.mark.parametrize("bad", [-1, 10**6])
def test_what_is_outside_is_named(n: int, bad: int) -> None:
    with pytest.raises(OrderError, match=f"position {bad} is out of range"):
        Permutation(n, 0).forward([0, bad])
    with pytest.raises(OrderError, match=f"index {bad} is out of range"):
        Permutation(n, 0).inverse([0, bad])


@pytest.mark.parametrize("n", [0, -1, 2**62 + 1])
def test_a_length_that_cannot_be_is_refused(n: int) -> None:
    with pytest.raises(ConfigError, match="between 1 and"):
        Permutation(n, 0)


@given(lengths(), seeds())
def test_it_is_the_same_after_pickling(n: int, seed: int) -> None:
    permutation = Permutation(n, seed)
    again = pickle.loads(pickle.dumps(permutation))  # noqa: S301 - our own bytes
    places = np.arange(min(n, 100))
    assert np.array_equal(permutation.forward(places), again.forward(places))


# Keys: what belongs to another seed, name or epoch has nothing to do with this one.


@given(seeds(), st.integers(0, 10**6), st.text(max_size=8))
def test_neighbouring_seeds_epochs_and_names_have_different_keys(seed: int, epoch: int, name: str) -> None:
    keys = {
        derive_key("epoch", seed, name, epoch),
        derive_key("epoch", seed, name, epoch + 1),
        derive_key("epoch", seed + 1, name, epoch),
        derive_key("epoch", seed + 1, name, epoch + 1),
        derive_key("epoch", seed, name + "0", epoch),
    }
    assert len(keys) == 5


@given(st.lists(st.one_of(st.text(), st.integers(), st.binary()), max_size=4), st.data())
def test_no_two_lists_of_parts_share_a_key(parts: list[int | str | bytes], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.one_of(st.text(), st.integers(), st.binary()), max_size=4))
    same = [(type(part), part) for part in parts] == [(type(part), part) for part in other]
    assert (derive_key(*parts) == derive_key(*other)) is same


def test_a_part_cannot_be_moved_from_one_word_to_the_next() -> None:
    assert len({derive_key("ab", "c"), derive_key("a", "bc"), derive_key("abc"), derive_key("", "abc")}) == 4
    assert len({derive_key(1), derive_key("1"), derive_key(b"1")}) == 3


def _fixed_points(first: Int64, second: Int64) -> int:
    return int(np.count_nonzero(first == second))


@pytest.mark.parametrize("n", [1_000, 100_000])
@pytest.mark.parametrize(
    "other",
    [
        ("wiki", 7, 6),
        ("wiki", 8, 5),
        ("wiki", 8, 6),
        ("wikis", 7, 5),
    ],
)
def test_neighbouring_epochs_seeds_and_names_give_unrelated_permutations(n: int, other: tuple[str, int, int]) -> None:
    places = np.arange(n)

    def epoch_order(name: str, seed: int, epoch: int) -> Int64:
        return Cycle(name, n, seed=seed).locate(Ordinals(places + epoch * n))[1]

    first, second = epoch_order("wiki", 7, 5), epoch_order(*other)
    # Unrelated permutations agree in Poisson(1) places; more than 10 has probability 1e-8.
    assert _fixed_points(first, second) <= 10
    assert abs(float(np.corrcoef(first, second)[0, 1])) < 5 / np.sqrt(n)


def test_the_next_epoch_of_a_seed_is_not_an_epoch_of_the_next_seed() -> None:
    n = 4_096
    places = np.arange(n)
    later = Cycle("a", n, seed=3).locate(Ordinals(places + n))[1]  # (s, e+1)
    neighbour = Cycle("a", n, seed=4).locate(Ordinals(places))[1]  # (s+1, e)
    assert _fixed_points(later, neighbour) <= 10


# Quality: compared with what NumPy draws. Keys are fixed, so the figures are the same in every run.


@pytest.mark.parametrize("n", [100, 10_000, 1_000_000])
def test_where_index_0_lands_over_many_keys_is_uniform(n: int) -> None:
    keys, bins = 1_000, 50

    def place_of_0(permutation: Permutation) -> int:
        # Of a table it is found where the smallest index stands, without sorting once more for the inverse.
        return int(permutation.forward(np.arange(n)).argmin() if n <= 10_000 else permutation.inverse(0))

    landed = np.array([place_of_0(Permutation(n, derive_key("uniform", n, key))) for key in range(keys)])
    seen = np.bincount(landed * bins // n, minlength=bins)
    statistic = float(((seen - keys / bins) ** 2 / (keys / bins)).sum())
    assert statistic < chi2.ppf(0.9999, bins - 1)
    assert statistic > chi2.ppf(0.0001, bins - 1)


def _displacement(order: Int64) -> float:
    return float(np.abs(order - np.arange(len(order))).mean() / len(order))


def _longest_run(order: Int64) -> float:
    """Return the most neighbours in a row that go up."""
    falls = np.flatnonzero(np.diff(order) < 0)
    return float(np.diff(np.concatenate(([-1], falls, [len(order) - 1]))).max())


def _adjacent(order: Int64) -> float:
    """Return how many neighbours were neighbours before: the mark of a weak shuffle."""
    return float(np.count_nonzero(np.abs(np.diff(order)) == 1))


@pytest.mark.parametrize(("n", "draws"), [(100, 400), (10_000, 50), (300_000, 5)])
@pytest.mark.parametrize("figure", [_displacement, _longest_run, _adjacent], ids=lambda figure: figure.__name__[1:])
def test_it_scatters_like_a_drawn_permutation(n: int, draws: int, figure: Callable[[Int64], float]) -> None:
    generator = np.random.default_rng(2_024)
    drawn = np.array([figure(generator.permutation(n)) for _ in range(draws)])
    ours = np.array([figure(Permutation(n, derive_key("scatter", key)).forward(np.arange(n))) for key in range(draws)])
    spread = np.sqrt((drawn.var(ddof=1) + ours.var(ddof=1)) / draws)
    assert abs(ours.mean() - drawn.mean()) <= 5 * spread + 1e-12


@pytest.mark.parametrize("n", [6, 24, 120])
def test_small_lengths_reach_every_permutation_of_three(n: int) -> None:
    """Over many keys, the first three of n stand in all 6 orders equally often."""
    keys = 1_500
    firsts = np.array([Permutation(n, derive_key("orders", n, key)).inverse([0, 1, 2]) for key in range(keys)])
    ranks = np.argsort(firsts, axis=1) @ np.array([9, 3, 1])
    seen = np.unique(ranks, return_counts=True)[1]
    assert len(seen) == 6
    assert float(((seen - keys / 6) ** 2 / (keys / 6)).sum()) < chi2.ppf(0.9999, 5)


@given(
    sizes=st.lists(
        st.integers(TABLE_LIMIT + 1, TABLE_LIMIT + 10**6) | st.integers(2**40, 2**62), min_size=1, max_size=6
    ),
    seed=st.integers(0, 2**32),
)
def test_several_permutations_in_one_pass_are_what_each_is_alone(sizes: list[int], seed: int) -> None:
    permutations = [Permutation(size, f"{seed} {number}") for number, size in enumerate(sizes)]
    generator = np.random.default_rng(seed)
    number = generator.integers(0, len(sizes), 300)
    places = np.array([generator.integers(0, sizes[one]) for one in number], dtype=np.int64)
    alone = [int(permutations[one].forward(np.array([place]))[0]) for one, place in zip(number, places, strict=True)]
    assert forward_each(permutations, number, places).tolist() == alone


@pytest.mark.parametrize("key", [b"", b"short", b"k" * 31, b"k" * 33, "text", 7])
def test_a_key_of_another_size_or_type_is_hashed_first(key: bytes | str | int) -> None:
    derived = Permutation(1000, derive_key("permutation", key)).forward(np.arange(1000))
    assert np.array_equal(Permutation(1000, key).forward(np.arange(1000)), derived)


def test_a_key_of_32_bytes_is_used_as_it_is() -> None:
    assert Permutation(1000, b"k" * 32).key == b"k" * 32
