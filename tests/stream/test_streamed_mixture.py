"""Mixtures with streamed children: exact ratios, exact resume, and processes that may change in number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream.streams import SHARDS, TOTAL, as_list, streamed
from torch.utils.data import DataLoader

from holdfast.errors import (
    ConfigError,
    EmptyPartitionError,
    MixtureError,
    StateError,
    StateMismatchError,
    StreamError,
    TransformError,
)
from holdfast.metrics import MetricsAggregator, StandardMetricTransform, collate_with_metrics
from holdfast.sources import ArraySource
from holdfast.stream import (
    DatasetInfo,
    HFStreamingDataset,
    InterleavedDataset,
    StreamDataset,
    StreamingShardLoader,
    TuneIterableDataset,
)
from holdfast.stream.share import Share
from holdfast.testing import assert_exact_resume

ignore_torchdata = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 asks torch for it
WEIGHTS = {"wiki": 3, "inner": 2}


def told(name: str) -> Any:
    """A transform that says whose sample it is."""
    return lambda sample: {"id": int(sample["id"]), "tokens": [1, 2], "of": name}


def stored(name: str = "wiki", length: int = 40, **options: Any) -> StreamDataset:
    source = ArraySource({"id": np.arange(length), "tokens": np.ones((length, 2), dtype=np.int64)})
    return StreamDataset(source, name=name, seed=3, **{"transform": told(name), **options})


def web(name: str = "web", **options: Any) -> HFStreamingDataset:
    return streamed(**{"name": name, "output_transform": told(name), **options})


def mixture(weights: Any = None, *, seed: int = 5, **options: Any) -> InterleavedDataset:
    """A stored dataset beside an inner mixture of one streamed and one stored."""
    inner = InterleavedDataset([web(**options), stored("code", 30)], {"web": 2, "code": 1}, name="inner")
    return InterleavedDataset([stored(), inner], weights or WEIGHTS, seed=seed, name="mix")


def marks(samples: Any) -> list[tuple[str, int]]:
    return [(sample["of"], sample["id"]) for sample in samples]


def resumed(state: Mapping[str, Any], make: Any = mixture) -> Any:
    again = make()
    again.load_state_dict(json.loads(json.dumps(state)))
    return again


# --- which sample comes when ---------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(
    weights=st.lists(st.integers(1, 50), min_size=3, max_size=3),
    streams=st.sets(st.sampled_from(["a", "b", "c"]), min_size=1),
    seed=st.integers(0, 5),
)
def test_the_choice_of_child_is_that_of_a_mixture_with_random_access_whatever_is_streamed(
    weights: list[int], streams: set[str], seed: int
) -> None:
    table = dict(zip("abc", weights, strict=True))
    found = InterleavedDataset([web(n) if n in streams else stored(n) for n in "abc"], table, seed=seed)
    plain = InterleavedDataset([stored(n) for n in "abc"], table, seed=seed)
    seen = marks(islice(found, 2048))
    expected = marks(islice(plain, 2048))
    assert [name for name, _ in seen] == [name for name, _ in expected]
    # And what has random access gives the same samples as ever, at the same places.
    assert [m for m in seen if m[0] not in streams] == [m for m in expected if m[0] not in streams]


def test_after_any_1024_samples_every_ratio_is_within_one_sample() -> None:
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
    own = InterleavedDataset([web(weight=3.0), stored()])
    assert Counter(name for name, _ in marks(islice(own, 1024))) == {"web": 768, "wiki": 256}
    planned = InterleavedDataset(
        [web(), stored()], [(0, {"wiki": 1}), (512, {"web": 1, "wiki": 1}), (1536, {"web": 1})]
    )
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


@settings(max_examples=40, deadline=None)
@given(before=st.integers(0, 700), window=st.integers(1, 30), shuffle=st.booleans())
def test_it_resumes_exactly_from_any_sample(before: int, window: int, shuffle: bool) -> None:
    def make() -> InterleavedDataset:
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


def test_a_transform_that_returns_none_passes_its_position_and_the_state_stays_exact() -> None:
    def make() -> InterleavedDataset:
        odd = stored(transform=lambda s: told("wiki")(s) if s["id"] % 2 else None)
        return InterleavedDataset([odd, web(filter_fn=lambda row: row["id"] % 3 == 0)], {"wiki": 1, "web": 1})

    whole = marks(islice(make(), 200))
    assert {i % 2 for name, i in whole if name == "wiki"} == {1}
    assert {i % 3 for name, i in whole if name == "web"} == {0}
    for before in (1, 50, 133):
        first = make()
        list(islice(first, before))
        assert marks(islice(resumed(first.state_dict(), make), 200 - before)) == whole[before:]


class Counting(TuneIterableDataset):
    """A dataset as a user writes one."""

    def __init__(self, end: int = 10**9) -> None:
        self.at, self.end = 0, end

    @property
    def dataset_name(self) -> str:
        return "own"

    @property
    def info(self) -> DatasetInfo:
        return DatasetInfo("own", None)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.at + 1, self.end + 1):  # an iterator does not see a state that is loaded later
            self.at = number
            yield {"of": "own", "id": number}

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.at = state_dict["at"]


def test_a_dataset_of_ones_own_can_be_mixed_and_resumes_exactly() -> None:
    def make() -> InterleavedDataset:
        return InterleavedDataset([stored(), Counting()], {"wiki": 1, "own": 1})

    whole, first = marks(islice(make(), 150)), make()
    assert [i for name, i in whole if name == "own"] == list(range(1, 1 + sum(name == "own" for name, _ in whole)))
    list(islice(first, 61))
    assert marks(islice(resumed(first.state_dict(), make), 89)) == whole[61:]


@pytest.mark.parametrize("child", [web, Counting])
def test_a_state_loaded_while_iterating_takes_effect_with_the_next_sample(child: Any) -> None:
    mixed = InterleavedDataset([stored(), child()])
    start, iterator = mixed.state_dict(), iter(mixed)
    whole = marks(islice(iterator, 70))
    mixed.load_state_dict(start)
    assert marks(islice(iterator, 70)) == whole


def test_a_child_that_ends_is_an_error_by_its_name() -> None:
    mixed = InterleavedDataset([stored(), Counting(end=10)], {"wiki": 1, "own": 1})
    with pytest.raises(StreamError, match="must be endless") as caught:
        list(islice(mixed, 100))
    assert caught.value.dataset == "own"


# --- batches -------------------------------------------------------------------------------------------------------


def measured() -> InterleavedDataset:
    metric = StandardMetricTransform()
    inner = InterleavedDataset(
        [web(metric_transform=metric), stored("code", 30, metric_transform=metric)], {"web": 2, "code": 1}, name="inner"
    )
    return InterleavedDataset([stored(metric_transform=metric), inner], WEIGHTS, seed=5, name="mix")


@ignore_torchdata
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_stateful_data_loader_resume_exactly_with_their_metrics(workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def pipeline() -> tuple[Any, MetricsAggregator]:
        loader = stateful.StatefulDataLoader(
            measured(), batch_size=8, num_workers=workers, collate_fn=collate_with_metrics
        )
        return loader, MetricsAggregator()

    assert_exact_resume(pipeline, [0, 5, 32], 20)


class StateBeside:
    """torch's own DataLoader in one process, and the dataset's state beside it: what the guide tells users to do."""

    def __init__(self) -> None:
        self.dataset = measured()
        self.loader: DataLoader[Any] = DataLoader(self.dataset, batch_size=8, collate_fn=collate_with_metrics)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.dataset.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.dataset.load_state_dict(state_dict)


def test_batches_of_torchs_own_data_loader_resume_exactly_from_the_datasets_state() -> None:
    assert_exact_resume(lambda: (StateBeside(), MetricsAggregator()), [0, 5, 32], 20)


def test_workers_of_a_data_loader_give_no_sample_twice_and_none_too_few() -> None:
    loader: DataLoader[Any] = DataLoader(mixture(), batch_size=4, num_workers=2, collate_fn=as_list)
    seen = marks(sample for batch in islice(loader, 64) for sample in batch)
    expected = marks(islice(mixture(), 256))
    for name in ("wiki", "code"):
        assert sorted(m for m in seen if m[0] == name) == sorted(m for m in expected if m[0] == name)
    assert [name for name, _ in seen].count("web") == [name for name, _ in expected].count("web")
    assert max(Counter(m for m in seen[:128] if m[0] == "web").values()) == 1  # less than an epoch of either worker


@ignore_torchdata
def test_the_states_of_a_stateful_data_loaders_workers_merge_for_another_number_of_them() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = stateful.StatefulDataLoader(mixture(), batch_size=3, num_workers=2, collate_fn=as_list)
    seen = marks(sample for batch in islice(loader, 11) for sample in batch)  # the workers stand at different places
    workers = loader.state_dict()["_snapshot"]["_worker_snapshots"].values()
    again = mixture()
    again.load_state_dict(again.merge_states([worker["dataset_state"] for worker in workers]))
    left = stateful.StatefulDataLoader(again, batch_size=3, num_workers=0, collate_fn=as_list)
    seen += marks(sample for batch in islice(left, 53) for sample in batch)
    expected = marks(islice(mixture(), 192))
    for name in ("wiki", "code"):
        assert sorted(m for m in seen if m[0] == name) == sorted(m for m in expected if m[0] == name)
    assert max(Counter(m for m in seen if m[0] == "web").values()) == 1


# --- many processes ------------------------------------------------------------------------------------------------


def as_process(share: Share, state: Mapping[str, Any] | None, count: int) -> tuple[list[Any], dict[str, Any]]:
    """Read as one of several processes; return whose sample, its epoch and id, and the state."""
    mixed = mixture() if state is None else resumed(state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.stream.streamed_mixture.share_of_process", lambda: share)
        patch.setattr("holdfast.stream.hf_streaming.share_of_process", lambda: share)
        seen = []
        for sample in islice(mixed, count):
            child: Any = mixed.streams["web"]
            epoch = child._queue.parts[0].epoch if sample["of"] == "web" else None
            seen.append((sample["of"], epoch, sample["id"]))
        return seen, json.loads(json.dumps(mixed.state_dict()))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_however_often_the_processes_change_in_number_no_position_and_no_sample_is_lost_or_repeated(
    data: st.DataObject,
) -> None:
    seen: list[Any] = []
    state: dict[str, Any] | None = None
    for _ in range(data.draw(st.integers(1, 4))):
        total = data.draw(st.integers(1, SHARDS))
        parts = [as_process(Share(number, total), state, data.draw(st.integers(0, 60))) for number in range(total)]
        seen += [mark for got, _ in parts for mark in got]
        state = mixture().merge_states(data.draw(st.permutations([left for _, left in parts])))
    assert state is not None
    behind = sum(length for _, _, length in state["left"])
    seen += as_process(Share(0, 1), state, behind)[0]
    # All positions up to one were read, each once: the ratios are exact and stored samples come as ever.
    expected = marks(islice(mixture(), state["position"]))
    assert Counter(name for name, *_ in seen) == Counter(name for name, _ in expected)
    for name in ("wiki", "code"):
        assert sorted(i for of, _, i in seen if of == name) == sorted(i for of, i in expected if of == name)
    assert max(Counter(mark for mark in seen if mark[0] == "web").values(), default=1) == 1


@settings(max_examples=15, deadline=None)
@given(total=st.integers(1, SHARDS), before=st.lists(st.integers(0, 90), min_size=SHARDS, max_size=SHARDS))
def test_every_process_resumes_exactly_from_its_own_state(total: int, before: list[int]) -> None:
    for number in range(total):
        share = Share(number, total)
        whole, _ = as_process(share, None, before[number] + 60)
        first, state = as_process(share, None, before[number])
        after, _ = as_process(share, state, 60)
        assert first + after == whole


def test_merged_states_of_processes_that_go_at_one_pace_leave_nothing_behind() -> None:
    states = [as_process(Share(number, 3), None, 20)[1] for number in range(3)]
    merged = mixture().merge_states(states)
    assert (merged["position"], merged["left"], merged["share"]) == (60, [], None)
    assert mixture().merge_states([merged]) == merged


def test_what_a_process_that_never_began_leaves_is_left_to_the_next_ones() -> None:
    seen, ahead = as_process(Share(0, 2), None, 30)
    _, behind = as_process(Share(1, 2), None, 0)
    merged = mixture().merge_states([behind, ahead])
    assert (merged["position"], merged["left"]) == (60, [[1, 2, 30]])
    more, ahead = as_process(Share(1, 2), merged, 10)
    _, behind = as_process(Share(0, 2), merged, 0)
    merged = mixture().merge_states([behind, ahead])
    rest, state = as_process(Share(0, 1), merged, 20)
    assert (state["position"], state["left"]) == (60, [])
    taken = sorted((name, i) for name, _, i in [*seen, *more, *rest] if name != "web")
    assert taken == sorted(mark for mark in marks(islice(mixture(), 60)) if mark[0] != "web")


def test_a_state_of_another_process_is_refused_until_merged() -> None:
    _, state = as_process(Share(0, 2), None, 10)
    for share in (Share(1, 2), Share(0, 3)):
        with pytest.raises(StateMismatchError, match="merge_states"):
            as_process(share, state, 1)
    for states in ([state], [state, state]):
        with pytest.raises(StateError, match="every process"):
            mixture().merge_states(states)
    with pytest.raises(StateError, match="no state"):
        mixture().merge_states([])


def test_states_that_did_not_begin_together_do_not_merge() -> None:
    states = [as_process(Share(number, 2), None, 10)[1] for number in range(2)]
    states[1]["position"] += 1
    with pytest.raises(StateError, match="began together"):
        mixture().merge_states(states)


def test_a_child_that_cannot_be_dealt_anew_is_named_when_merging() -> None:
    mixed = InterleavedDataset([stored(), Counting()])
    with pytest.raises(StateError, match="another number of processes") as caught:
        mixed.merge_states([mixed.state_dict()])
    assert caught.value.dataset == "own"


def test_more_processes_than_shards_are_refused_before_the_first_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: SHARDS + 1)
    with pytest.raises(EmptyPartitionError, match="only 5 shards") as caught:
        iter(mixture())
    assert caught.value.dataset == "web"


# --- what cannot be ------------------------------------------------------------------------------------------------


def test_the_loader_refuses_it_and_says_what_to_use() -> None:
    with pytest.raises(ConfigError, match="StatefulDataLoader") as caught:
        StreamingShardLoader(mixture())
    assert caught.value.dataset == "mix"


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_it_cannot_stop_when_a_child_is_exhausted_as_nobody_knows_when_that_is(stop: str) -> None:
    with pytest.raises(MixtureError, match="cannot stop by itself") as caught:
        InterleavedDataset([stored(), web()], stop=stop)
    assert caught.value.streamed == ["web"]


def test_a_mixture_with_random_access_has_nothing_to_merge() -> None:
    mixed = InterleavedDataset([stored(), stored("code")])
    with pytest.raises(ConfigError, match="nothing to merge"):
        mixed.merge_states([mixed.state_dict()])


def test_names_are_unique_among_streamed_children_too() -> None:
    with pytest.raises(MixtureError, match="same name"):
        InterleavedDataset([stored("web"), InterleavedDataset([web()], name="inner")])


def test_a_state_of_another_mixture_is_refused_and_the_child_that_differs_named() -> None:
    state = mixture().state_dict()
    with pytest.raises(StateMismatchError) as caught:
        mixture({"wiki": 1, "inner": 1}).load_state_dict(state)
    assert caught.value.children == {}
    with pytest.raises(StateMismatchError) as caught:
        InterleavedDataset([stored(length=41), web()], {"wiki": 1, "web": 1}, name="mix").load_state_dict(state)
    assert caught.value.children == {"wiki": "other data, shuffle or seed", "inner": "gone", "web": "new"}
    inner: Any = mixture().children["inner"]
    with pytest.raises(StateError, match="outermost"):
        inner.load_state_dict(state["children"]["inner"])


def test_a_damaged_state_is_refused() -> None:
    state = mixture().state_dict()
    for damaged in ({**state, "left": [[1]]}, {**state, "share": 5}, {**state, "children": {"wiki": None}}):
        with pytest.raises(StateError, match="damaged"):
            mixture().load_state_dict(damaged)


def test_a_state_that_one_streamed_child_refuses_moves_none_of_them() -> None:
    def pair(seed: int = 3) -> InterleavedDataset:
        return InterleavedDataset([web("a"), web("b", seed=seed)], {"a": 1, "b": 1})

    other, mixed = pair(seed=4), pair()
    list(islice(other, 40))
    list(islice(mixed, 10))
    before = mixed.state_dict()
    with pytest.raises(StateMismatchError, match="another name, seed") as caught:
        mixed.load_state_dict(other.state_dict())
    assert caught.value.dataset == "b"
    assert mixed.state_dict() == before


def fails(sample: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("bad row")


def test_a_failing_transform_is_named_by_its_child_whichever_kind_it_is() -> None:
    for children in ([stored(transform=fails), web()], [stored(), web(model_transform=fails)]):
        with pytest.raises(TransformError, match="bad row") as caught:
            list(islice(InterleavedDataset(children, {"wiki": 1, "web": 1}), 50))
        assert caught.value.source in ("wiki", "web")


def test_transforms_that_leave_out_everything_raise_instead_of_reading_for_ever() -> None:
    nothing = stored(transform=lambda _: None)
    mixed = InterleavedDataset([nothing, web()], [(0, {"wiki": 1}), (10**9, {"web": 1})])
    with pytest.raises(EmptyPartitionError, match="whole pass"):
        next(iter(mixed))
