"""Mixtures with streamed children: which sample comes when, stopped and continued, and what cannot be."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream.streams import TOTAL, Counting, ids, marks, mixture, resumed, stored, streamed, told, web

from holdfast.errors import (
    ConfigError,
    EmptyPartitionError,
    MixtureError,
    StateError,
    StateMismatchError,
    StreamError,
    TransformError,
)
from holdfast.sources import ArraySource
from holdfast.stream import ForwardMixture, InterleavedDataset, StreamDataset, StreamingShardLoader

# --- which sample comes when ---------------------------------------------------------------------------------------


@settings(max_examples=6, deadline=None)
@given(
    weights=st.lists(st.integers(1, 50), min_size=3, max_size=3),
    streams=st.sets(st.sampled_from(["a", "b", "c"]), min_size=1),
    seed=st.integers(0, 5),
)
def test_the_choice_of_child_is_that_of_a_mixture_with_random_access_whatever_is_streamed(
    weights: list[int], streams: set[str], seed: int
) -> None:
    table = dict(zip("abc", weights, strict=True))
    found = ForwardMixture([web(n) if n in streams else stored(n) for n in "abc"], table, seed=seed)
    plain = InterleavedDataset([stored(n) for n in "abc"], table, seed=seed)
    seen = marks(islice(found, 2048))
    expected = marks(islice(plain, 2048))
    assert [name for name, _ in seen] == [name for name, _ in expected]
    # And what has random access gives the same samples as ever, at the same places.
    assert [m for m in seen if m[0] not in streams] == [m for m in expected if m[0] not in streams]


def test_after_any_1024_streamed_samples_every_ratio_is_within_one_sample() -> None:
    seen = marks(islice(mixture(), 4 * 1024))
    shares = {"wiki": 3 / 5, "web": 4 / 15, "code": 2 / 15}
    for blocks in (1, 2, 3, 4):
        counts = Counter(name for name, _ in seen[: 1024 * blocks])
        assert all(abs(counts[name] - 1024 * blocks * share) <= 1 for name, share in shares.items())


def test_a_streamed_child_gives_in_a_mixture_what_it_gives_alone() -> None:
    seen = [mark for mark in marks(islice(mixture(), 1024)) if mark[0] == "web"]
    assert len(seen) > 3 * TOTAL
    assert seen == marks(islice(web(), len(seen)))


def test_weights_of_streamed_children_may_be_their_own_or_follow_a_schedule() -> None:
    own = ForwardMixture([web(weight=3.0), stored()])
    assert Counter(name for name, _ in marks(islice(own, 1024))) == {"web": 768, "wiki": 256}
    planned = ForwardMixture([web(), stored()], [(0, {"wiki": 1}), (512, {"web": 1, "wiki": 1}), (1536, {"web": 1})])
    names = [name for name, _ in marks(islice(planned, 2000))]
    assert Counter(names[:512]) == {"wiki": 512}
    assert Counter(names[512:1536]) == {"web": 512, "wiki": 512}
    assert Counter(names[1536:]) == {"web": 464}


def test_it_is_described_with_a_length_nobody_knows() -> None:
    info = mixture().info
    assert (info.name, info.length) == ("mix", None)
    assert [(part.name, part.length) for part in info.children] == [("wiki", 40), ("inner", None)]
    assert [(part.name, part.length) for part in info.children[1].children] == [("web", None), ("code", 30)]


# --- stopped and continued -----------------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None)
@given(before=st.integers(0, 700), window=st.integers(1, 30), shuffle=st.booleans())
def test_it_resumes_exactly_from_any_sample(before: int, window: int, shuffle: bool) -> None:
    def make() -> ForwardMixture:
        return mixture(window=window, shuffle=shuffle)

    first = make()
    assert len(list(islice(first, before))) == before
    again = resumed(first.state_dict(), make)
    assert marks(islice(again, 150)) == marks(islice(make(), before, before + 150))


def test_the_children_s_states_stand_under_their_names_nested_as_they_are() -> None:
    mixed = mixture()
    seen = Counter(name for name, _ in marks(islice(mixed, 1024)))
    children = mixed.state_dict()["children"]
    assert children["wiki"]["position"] == seen["wiki"]
    assert children["inner"]["children"]["code"]["position"] == seen["code"]
    alone = web()
    alone.load_state_dict(children["inner"]["children"]["web"])
    following = [mark for mark in marks(islice(mixed, 100)) if mark[0] == "web"]
    assert marks(islice(alone, len(following))) == following


def test_it_survives_pickling_in_the_middle_as_worker_processes_that_are_spawned_need() -> None:
    source = ArraySource({"id": np.arange(40)})
    mixed = ForwardMixture([StreamDataset(source, name="wiki"), streamed()], {"wiki": 1, "web": 1})
    list(islice(mixed, 45))
    copied = pickle.loads(pickle.dumps(mixed))  # noqa: S301 - our own bytes, made on this line
    assert ids(islice(copied, 60)) == ids(islice(mixed, 60))
    assert copied.state_dict() == mixed.state_dict()


def test_a_transform_that_returns_none_passes_its_position_and_the_state_stays_exact() -> None:
    def make() -> ForwardMixture:
        odd = stored(transform=lambda s: told("wiki")(s) if s["id"] % 2 else None)
        return ForwardMixture([odd, web(filter_fn=lambda row: row["id"] % 3 == 0)], {"wiki": 1, "web": 1})

    whole = marks(islice(make(), 200))
    assert {i % 2 for name, i in whole if name == "wiki"} == {1}
    assert {i % 3 for name, i in whole if name == "web"} == {0}
    for before in (1, 50, 133):
        first = make()
        list(islice(first, before))
        assert marks(islice(resumed(first.state_dict(), make), 200 - before)) == whole[before:]


def test_a_dataset_of_ones_own_can_be_mixed_and_resumes_exactly() -> None:
    def make() -> ForwardMixture:
        return ForwardMixture([stored(), Counting()], {"wiki": 1, "own": 1})

    whole, first = marks(islice(make(), 150)), make()
    assert [i for name, i in whole if name == "own"] == list(range(1, 1 + sum(name == "own" for name, _ in whole)))
    list(islice(first, 61))
    assert marks(islice(resumed(first.state_dict(), make), 89)) == whole[61:]


@pytest.mark.parametrize("child", [web, Counting])
def test_a_state_loaded_while_iterating_a_mixture_takes_effect_with_the_next_sample(child: Any) -> None:
    mixed = ForwardMixture([stored(), child()])
    start, iterator = mixed.state_dict(), iter(mixed)
    whole = marks(islice(iterator, 70))
    mixed.load_state_dict(start)
    assert marks(islice(iterator, 70)) == whole


def test_a_child_that_ends_is_an_error_by_its_name() -> None:
    mixed = ForwardMixture([stored(), Counting(end=10)], {"wiki": 1, "own": 1})
    with pytest.raises(StreamError, match="must be endless") as caught:
        list(islice(mixed, 100))
    assert caught.value.dataset == "own"


# --- what cannot be ------------------------------------------------------------------------------------------------


def test_the_loader_refuses_it_and_says_what_to_use() -> None:
    mixed: Any = mixture()
    with pytest.raises(ConfigError, match="StatefulDataLoader") as caught:
        StreamingShardLoader(mixed)
    assert caught.value.dataset == "ForwardMixture"


def test_a_mixture_with_random_access_takes_no_such_child_and_says_which_does() -> None:
    forward: Any = web()
    with pytest.raises(MixtureError, match="ForwardMixture") as caught:
        InterleavedDataset([stored(), forward])
    assert caught.value.dataset == "web"


def test_names_are_unique_among_streamed_children_too() -> None:
    with pytest.raises(MixtureError, match="same name"):
        ForwardMixture([stored("web"), ForwardMixture([web()], name="inner")])


def test_a_state_of_another_mixture_is_refused_and_the_child_that_differs_named() -> None:
    state = mixture().state_dict()
    with pytest.raises(StateMismatchError) as caught:
        mixture({"wiki": 1, "inner": 1}).load_state_dict(state)
    assert caught.value.children == {}
    with pytest.raises(StateMismatchError) as caught:
        ForwardMixture([stored(length=41), web()], {"wiki": 1, "web": 1}, name="mix").load_state_dict(state)
    assert caught.value.children == {"wiki": "other data, shuffle or seed", "inner": "gone", "web": "new"}
    inner: Any = mixture().children["inner"]
    with pytest.raises(StateError, match="outermost"):
        inner.load_state_dict(state["children"]["inner"])


def test_an_early_state_without_one_of_the_children_is_of_another_mixture() -> None:
    mixed = ForwardMixture([stored(), web()], {"wiki": 1, "web": 1})
    before = mixed.state_dict()
    with pytest.raises(StateMismatchError) as caught:
        mixed.load_state_dict({**before, "fingerprint": "", "children": {"web": before["children"]["web"]}})
    assert caught.value.children == {"wiki": "new"}
    assert mixed.state_dict() == before


def test_a_damaged_state_is_refused() -> None:
    state = mixture().state_dict()
    for damaged in ({**state, "left": [[1]]}, {**state, "process": 5}, {**state, "children": {"wiki": None}}):
        with pytest.raises(StateError, match=r"damaged|invalid"):
            mixture().load_state_dict(damaged)


def test_a_state_that_one_streamed_child_refuses_moves_none_of_them() -> None:
    def pair(seed: int = 3) -> ForwardMixture:
        return ForwardMixture([web("a"), web("b", seed=seed)], {"a": 1, "b": 1})

    other, mixed = pair(seed=4), pair()
    list(islice(other, 40))
    list(islice(mixed, 10))
    before = mixed.state_dict()
    with pytest.raises(StateMismatchError, match="a different name, seed") as caught:
        mixed.load_state_dict(other.state_dict())
    assert caught.value.dataset == "b"
    assert mixed.state_dict() == before


def fails(sample: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("bad row")


def test_a_failing_transform_is_named_by_its_child_whichever_kind_it_is() -> None:
    for children in ([stored(transform=fails), web()], [stored(), web(model_transform=fails)]):
        with pytest.raises(TransformError, match="bad row") as caught:
            list(islice(ForwardMixture(children, {"wiki": 1, "web": 1}), 50))
        assert caught.value.source in ("wiki", "web")


def test_transforms_that_leave_out_everything_raise_instead_of_reading_for_ever() -> None:
    nothing = stored(transform=lambda _: None)
    mixed = ForwardMixture([nothing, web()], [(0, {"wiki": 1}), (10**9, {"web": 1})])
    with pytest.raises(EmptyPartitionError, match="entire pass"):
        next(iter(mixed))
