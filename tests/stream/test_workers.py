"""Worker processes give the same batches and the same errors as threads, however they are started."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from tests.stream.jobs import dataset_of, numbers

from holdfast.errors import SourceError, StreamError, TransformError
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

# torch's advice to have no more workers than processors; four must give the same batches on a machine with two.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SAMPLES = 50


def loader_with(workers: int, **options: Any) -> StreamingShardLoader:
    config = {"batch_size": 4, "epochs": 1, "prefetch_buffer_size": 8, **options}
    return StreamingShardLoader(dataset_of({"a": SAMPLES}), StreamingConfig(num_workers=workers, **config))


def indices(batches: Any) -> list[int]:
    return [index for batch in batches for index in batch["index"].tolist()]


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return {"index": sample["index"] * 2}


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"value": sample["index"] + rng.random()}


def fails_on_seven(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["index"] == 7:
        raise ZeroDivisionError("seven")
    return sample


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_start_by_spawn_and_forkserver_too(context: str) -> None:
    dataset = StreamDataset(numbers(20), name="a", transform=double)
    config = StreamingConfig(batch_size=5, epochs=1, num_workers=1, multiprocessing_context=context)
    assert sorted(indices(StreamingShardLoader(dataset, config))) == list(range(0, 40, 2))


def test_starting_workers_leaves_the_random_numbers_of_the_training_as_they_are() -> None:
    """Else a resumed run, whose workers start again after its generators were restored, would draw other ones."""
    before = torch.get_rng_state()
    next(iter(loader_with(1)))
    assert torch.equal(torch.get_rng_state(), before)


def test_random_augmentation_depends_on_the_sample_and_not_on_who_reads_it() -> None:
    def values(workers: int, batch: int) -> list[float]:
        dataset = StreamDataset(numbers(20), name="a", transform=noisy, seed=3)
        loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=batch, epochs=2, num_workers=workers))
        return [value for batch in loader for value in batch["value"].tolist()]

    assert values(0, 4) == values(2, 7)
    drawn = values(0, 4)
    assert sorted(drawn[:20]) != sorted(drawn[20:])  # another epoch draws again


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_transform_names_the_sample_and_keeps_its_cause(workers: int) -> None:
    dataset = StreamDataset(numbers(20), name="a", transform=fails_on_seven)
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=4, epochs=1, num_workers=workers))
    with pytest.raises(TransformError, match="seven") as caught:
        list(loader)
    error = caught.value
    assert (error.source, error.index) == ("a", 7)
    assert error.position is not None
    assert loader.order.locate([error.position]).index.tolist() == [7]
    assert "ZeroDivisionError" in (str(error.__cause__) if workers else repr(error.__cause__))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_is_raised_at_its_own_step_and_the_run_goes_on_from_there_once_the_sample_is_skipped(
    workers: int,
) -> None:
    dataset = StreamDataset(numbers(20), name="a", transform=fails_on_seven, shuffle="none")
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=3, epochs=1, num_workers=workers))
    iterator = iter(loader)
    assert [next(iterator)["index"].tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(TransformError):
        next(iterator)
    assert loader.step == 2
    loader.skip(samples={"a": [7]})
    rest = [batch["index"].tolist() for batch in loader]
    assert rest == [[6, 8, 9], [10, 11, 12], [13, 14, 15], [16, 17, 18], [19]]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_collate_function_is_told_with_its_step(workers: int) -> None:
    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        if samples[0]["index"] == 6:
            raise _Unpicklable()
        return {"index": [sample["index"] for sample in samples]}

    dataset = StreamDataset(numbers(20), name="a", shuffle="none")
    loader = StreamingShardLoader(
        dataset, StreamingConfig(batch_size=3, epochs=1, num_workers=workers), collate=collate
    )
    with pytest.raises(StreamError, match="_Unpicklable") as caught:
        list(loader)
    assert caught.value.step == loader.step == 2


class _Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("stays where it is")


def test_a_loader_and_its_steps_survive_pickling() -> None:
    reader = loader_with(0)._reader(3)
    again = pickle.loads(pickle.dumps(reader))  # noqa: S301  # our own bytes
    steps = range(3, 6)
    for found, expected in zip(again(steps).batches, reader(steps).batches, strict=True):
        assert torch.equal(found.make()["index"], expected.make()["index"])


def test_a_read_error_names_the_source_and_the_index() -> None:
    class Broken(type(numbers(1))):  # type: ignore[misc]
        def read(self, indices: Any) -> Any:
            if 11 in indices:
                raise OSError("bad sector")
            return super().read(indices)

    source = Broken({"source": np.zeros(20), "index": np.arange(20)})
    loader = StreamingShardLoader(StreamDataset(source, name="disk"), StreamingConfig(batch_size=4, epochs=1))
    with pytest.raises(SourceError, match="bad sector") as caught:
        list(loader)
    assert (caught.value.source, caught.value.index) == ("disk", 11)
    assert isinstance(caught.value.__cause__, OSError)
