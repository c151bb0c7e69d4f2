"""Mixtures with streamed children in batches and in many processes, whose number may change."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream.streams import (
    SHARDS,
    WEIGHTS,
    Counting,
    as_list,
    marks,
    mixture,
    resumed,
    stored,
    web,
)
from torch.utils.data import DataLoader

from holdfast.errors import ConfigError, EmptyPartitionError, StateError, StateMismatchError
from holdfast.metrics import MetricsAggregator, StandardMetricTransform, collate_with_metrics
from holdfast.stream import ForwardMixture
from holdfast.stream.process import Process
from holdfast.testing import assert_exact_resume

ignore_torchdata = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 asks torch for it


# --- batches -------------------------------------------------------------------------------------------------------


def measured() -> ForwardMixture:
    metric = StandardMetricTransform()
    inner = ForwardMixture(
        [web(metric_transform=metric), stored("code", 30, metric_transform=metric)], {"web": 2, "code": 1}, name="inner"
    )
    return ForwardMixture([stored(metric_transform=metric), inner], WEIGHTS, seed=5, name="mix")


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


def test_metrics_of_every_child_count_what_was_delivered_of_it() -> None:
    aggregator = MetricsAggregator()
    loader: DataLoader[Any] = DataLoader(measured(), batch_size=8, num_workers=2, collate_fn=collate_with_metrics)
    delivered: Counter[str] = Counter()
    for batch in islice(loader, 64):
        aggregator.update(batch["metrics"])
        delivered.update(batch["of"])
    report = aggregator.get_metrics()
    assert {name: figures["samples_seen"] for name, figures in report.items()} == delivered
    assert {name: figures["tokens_seen"] for name, figures in report.items()} == {
        n: 2 * c for n, c in delivered.items()
    }
    assert sum(delivered.values()) == 512


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


def as_process(process: Process, state: Mapping[str, Any] | None, count: int) -> tuple[list[Any], dict[str, Any]]:
    """Read as one of several processes; return whose sample, its epoch and id, and the state."""
    mixed = mixture() if state is None else resumed(state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.stream.dataset.this_process", lambda _: process)
        seen = []
        for sample in islice(mixed, count):
            child: Any = mixed.streams["web"]
            epoch = child._queue.parts[0].epoch if sample["of"] == "web" else None
            seen.append((sample["of"], epoch, sample["id"]))
        return seen, json.loads(json.dumps(mixed.state_dict()))


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_however_often_the_processes_change_in_number_no_position_and_no_sample_is_lost_or_repeated(
    data: st.DataObject,
) -> None:
    seen: list[Any] = []
    state: dict[str, Any] | None = None
    for _ in range(data.draw(st.integers(1, 4))):
        total = data.draw(st.integers(1, SHARDS))
        parts = [as_process(Process(number, total), state, data.draw(st.integers(0, 60))) for number in range(total)]
        seen += [mark for got, _ in parts for mark in got]
        state = mixture().merge_states(data.draw(st.permutations([left for _, left in parts])))
    assert state is not None
    behind = sum(length for _, _, length in state["left"])
    seen += as_process(Process(0, 1), state, behind)[0]
    # All positions up to one were read, each once: the ratios are exact and stored samples come as ever.
    expected = marks(islice(mixture(), state["position"]))
    assert Counter(name for name, *_ in seen) == Counter(name for name, _ in expected)
    for name in ("wiki", "code"):
        assert sorted(i for of, _, i in seen if of == name) == sorted(i for of, i in expected if of == name)
    assert max(Counter(mark for mark in seen if mark[0] == "web").values(), default=1) == 1


@settings(max_examples=6, deadline=None)
@given(total=st.integers(1, SHARDS), before=st.lists(st.integers(0, 90), min_size=SHARDS, max_size=SHARDS))
def test_every_process_resumes_exactly_from_its_own_state(total: int, before: list[int]) -> None:
    for number in range(total):
        share = Process(number, total)
        whole, _ = as_process(share, None, before[number] + 60)
        first, state = as_process(share, None, before[number])
        after, _ = as_process(share, state, 60)
        assert first + after == whole


def test_merged_states_of_processes_that_go_at_one_pace_leave_nothing_behind() -> None:
    states = [as_process(Process(number, 3), None, 20)[1] for number in range(3)]
    merged = mixture().merge_states(states)
    assert (merged["position"], merged["left"], merged["process"]) == (60, [], None)
    assert mixture().merge_states([merged]) == merged


def test_what_a_process_that_never_began_leaves_is_left_to_the_next_ones() -> None:
    seen, ahead = as_process(Process(0, 2), None, 30)
    _, behind = as_process(Process(1, 2), None, 0)
    merged = mixture().merge_states([behind, ahead])
    assert (merged["position"], merged["left"]) == (60, [[1, 2, 30]])
    more, ahead = as_process(Process(1, 2), merged, 10)
    _, behind = as_process(Process(0, 2), merged, 0)
    merged = mixture().merge_states([behind, ahead])
    rest, state = as_process(Process(0, 1), merged, 20)
    assert (state["position"], state["left"]) == (60, [])
    taken = sorted((name, i) for name, _, i in [*seen, *more, *rest] if name != "web")
    assert taken == sorted(mark for mark in marks(islice(mixture(), 60)) if mark[0] != "web")


def test_a_state_of_another_process_is_refused_until_merged() -> None:
    _, state = as_process(Process(0, 2), None, 10)
    for share in (Process(1, 2), Process(0, 3)):
        with pytest.raises(StateMismatchError, match="merge_states"):
            as_process(share, state, 1)
    for states in ([state], [state, state]):
        with pytest.raises(StateError, match="every process"):
            mixture().merge_states(states)
    with pytest.raises(StateError, match="no state"):
        mixture().merge_states([])


def test_states_that_did_not_begin_together_do_not_merge() -> None:
    states = [as_process(Process(number, 2), None, 10)[1] for number in range(2)]
    states[1]["position"] += 1
    with pytest.raises(StateError, match="started together"):
        mixture().merge_states(states)


def test_a_child_that_cannot_be_dealt_anew_is_named_when_merging() -> None:
    mixed = ForwardMixture([stored(), Counting()])
    with pytest.raises(StateError, match="a different number of processes") as caught:
        mixed.merge_states([mixed.state_dict()])
    assert caught.value.dataset == "own"


def test_more_processes_than_shards_are_refused_before_the_first_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: SHARDS + 1)
    with pytest.raises(EmptyPartitionError, match="only 5 shards") as caught:
        iter(mixture())
    assert caught.value.dataset == "web"


# --- ranks that share data -----------------------------------------------------------------------------------------


def test_ranks_that_share_data_get_the_same_samples_and_the_others_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [as_process(Process(number, 2), None, 60)[0] for number in range(2)]
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    for rank in range(4):  # two data-parallel ranks of two tensor-parallel ones each
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        mixed = mixture()
        mixed.read_as(rank=rank // 2, world_size=2)
        assert marks(islice(mixed, 60)) == [(name, i) for name, _, i in shares[rank // 2]]


@pytest.mark.parametrize("make", [stored, web, mixture])
def test_whatever_is_iterated_may_be_told_its_rank(make: Any) -> None:
    parts = []
    for rank in range(3):
        dataset = make()
        dataset.read_as(rank=rank, world_size=3)
        parts += marks(islice(dataset, 7))  # the shortest shard
    assert len(set(parts)) == len(parts) == 21


def test_workers_divide_the_share_of_a_rank_that_was_told() -> None:
    dataset = stored(length=80)
    dataset.read_as(rank=1, world_size=2)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=as_list)
    seen = marks(sample for batch in islice(loader, 10) for sample in batch)
    # Four processes deal the positions among them; this rank has the last two.
    expected = [mark for place, mark in enumerate(marks(islice(stored(length=80), 80))) if place % 4 >= 2]
    assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_cannot_be_is_refused(rank: int, world_size: int) -> None:
    with pytest.raises(ConfigError, match="below the world size"):
        mixture().read_as(rank=rank, world_size=world_size)
