"""Any number of worker processes: unique samples, full coverage, one order, and a state that the main process keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.stream.jobs import dataset_of

from holdfast.order import WindowShuffle
from holdfast.stream import StreamingConfig, StreamingShardLoader

# torch's advice to have no more workers than processors; four must give the same batches on a machine with two.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SAMPLES, EPOCHS, BATCH = 50, 2, 5
STEPS = SAMPLES // BATCH  # of one epoch
COUNTS = [0, 1, 2, 4]
SHUFFLES: dict[str, Any] = {"full": "full", "window": WindowShuffle(10, 2), "none": "none"}
STOPS = {"mid-epoch": 7, "the exact end of an epoch": STEPS, "the exact end of the stream": EPOCHS * STEPS}


def loader_with(workers: int, shuffle: str = "full", **options: Any) -> StreamingShardLoader:
    config = StreamingConfig(
        batch_size=BATCH, epochs=EPOCHS, num_workers=workers, prefetch_buffer_size=3 * BATCH, **options
    )
    return StreamingShardLoader(dataset_of({"a": SAMPLES}, shuffle=SHUFFLES[shuffle]), config)


def indices(batches: Any) -> list[int]:
    return [index for batch in batches for index in batch["index"].tolist()]


def read(loader: StreamingShardLoader, steps: int) -> list[int]:
    """Read some steps, checking before each that the state counts what was delivered, not what was read ahead."""
    found = []
    iterator = iter(loader)
    for _ in range(steps):
        check_state(loader)
        found += next(iterator)["index"].tolist()
    check_state(loader)
    iterator.close()  # type: ignore[attr-defined]  # it is a generator: ends its threads and processes
    return found


def check_state(loader: StreamingShardLoader) -> None:
    state = loader.state_dict()
    position = loader.step * BATCH
    assert (state["step"], state["position"], state["epoch"]) == (loader.step, position, position // SAMPLES)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("workers", COUNTS)
def test_a_run_stopped_and_resumed_with_another_number_of_workers_is_the_run_that_was_not(
    workers: int, stop: str, shuffle: str
) -> None:
    untouched = indices(loader_with(0, shuffle))
    first = loader_with(workers, shuffle)
    before = read(first, STOPS[stop])
    state = json.loads(json.dumps(first.state_dict()))
    others = COUNTS[(COUNTS.index(workers) + 1) % len(COUNTS)]
    resumed = loader_with(others, shuffle)
    resumed.load_state_dict(state)
    found = before + read(resumed, EPOCHS * STEPS - STOPS[stop])
    assert resumed.is_empty()
    assert indices(resumed) == []
    assert found == untouched
    epochs = [found[start : start + SAMPLES] for start in range(0, len(found), SAMPLES)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SAMPLES))] * EPOCHS
    shuffled = shuffle != "none"
    assert (epochs[0] != sorted(epochs[0])) == (epochs[0] != epochs[1]) == shuffled


@pytest.mark.parametrize("workers", COUNTS)
def test_an_iteration_that_ends_with_its_epoch_goes_on_with_the_next_after_a_resume(workers: int) -> None:
    loader = loader_with(workers, per_epoch=True)
    first = indices(loader)
    assert sorted(first) == list(range(SAMPLES))
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, SAMPLES)
    resumed = loader_with(workers, per_epoch=True)
    resumed.load_state_dict(state)
    second = indices(resumed)
    assert sorted(second) == list(range(SAMPLES))
    assert second != first
    assert resumed.is_empty()
    assert indices(resumed) == []
