"""Formats of other libraries: the same samples bit for bit, and samples per second beside the library's own loader.

Each library writes the samples with its own writer and reads them with its own loader, in the order they lie, sample
by sample; holdfast reads them through a stream in batches of 256, in a full shuffle. Every sample is compared before
anything is timed, so files are in the system's cache, and a Lance dataset is in holdfast's: *first epoch* is what a
source that was just opened reads. The sides take turns; figures are medians. A library that is not installed is a row
that says so.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from common import alternate, arguments, let_mosaic_import, publish
from holdfast import StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.sources import Source

BATCH = 256
TOKENS = 512


class Case:
    """A format: its source, and the values that its own loader gives, in order, as flat arrays."""

    def __init__(self, source: Source, theirs: Callable[[], Iterable[Any]], column: str) -> None:
        self.source = source
        self.theirs = theirs
        self.column = column

    def check(self) -> None:
        """Compare every sample."""
        found = self.source.read(np.arange(len(self.source)))[self.column]
        count = 0
        for row, other in enumerate(self.theirs()):
            expected = np.frombuffer(other, np.uint8) if isinstance(other, bytes) else np.asarray(other).reshape(-1)
            ours = np.asarray(found[row]).reshape(-1)
            if ours.dtype != expected.dtype or not np.array_equal(ours, expected):
                raise SystemExit(f"sample {row} differs: {ours[:8]} and {expected[:8]}")
            count += 1
        if count != len(self.source):
            raise SystemExit(f"{count} samples of their loader, {len(self.source)} of ours")

    def read_theirs(self) -> None:
        """Read all samples with the library's loader."""
        for _ in self.theirs():
            pass

    def read_ours(self) -> None:
        """Read all samples through a stream."""
        dataset = StreamDataset(self.source, name="bench", seed=1)
        for _ in StreamingShardLoader(dataset, StreamingConfig(batch_size=BATCH, epochs=1)):
            pass

    def read_first(self) -> None:
        """Read all samples through a stream, with nothing decoded yet."""
        self.source.close()
        self.read_ours()


def samples(count: int) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(5)
    return [generator.integers(0, 50_000, TOKENS).astype(np.int32) for _ in range(count)]


def mds(folder: Path, count: int) -> Case:
    let_mosaic_import()
    from streaming import MDSWriter, StreamingDataset

    from holdfast.sources import MDSSource

    with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:int32:{TOKENS}"}) as out:
        for tokens in samples(count):
            out.write({"tokens": tokens})
    theirs = StreamingDataset(local=str(folder), shuffle=False, batch_size=BATCH)
    return Case(MDSSource(folder), lambda: (sample["tokens"] for sample in theirs), "tokens")


class Numbered:
    """Gives a sample by its number, as LitData's ``optimize`` asks for it in a process of its own."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, number: int) -> dict[str, Any]:
        """Return a sample."""
        return {"tokens": np.random.default_rng(number).integers(0, 50_000, TOKENS).astype(np.int32)}


def litdata(folder: Path, count: int) -> Case:
    from litdata import StreamingDataset, optimize

    from holdfast.sources import LitDataSource

    optimize(Numbered(count), list(range(count)), str(folder), chunk_bytes="8MB", num_workers=1, verbose=False)
    theirs = StreamingDataset(str(folder), shuffle=False)
    return Case(LitDataSource(folder), lambda: (sample["tokens"] for sample in theirs), "tokens")


def megatron(folder: Path, count: int) -> Case:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    from holdfast.sources import MegatronSource

    folder.mkdir()
    builder = IndexedDatasetBuilder(str(folder / "data.bin"), dtype=np.int32)
    for tokens in samples(count):
        builder.add_document(torch.from_numpy(tokens), [len(tokens)])
    builder.finalize(str(folder / "data.idx"))
    theirs = IndexedDataset(str(folder / "data"), mmap=True)
    source = MegatronSource(folder / "data", unit="sequence")
    return Case(source, lambda: (theirs[number] for number in range(len(theirs))), "tokens")


def hugging_face(folder: Path, count: int) -> Case:
    import datasets

    from holdfast.sources import HFFolderSource

    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("int32"))})
    datasets.Dataset.from_dict({"tokens": samples(count)}, features=features).save_to_disk(str(folder))
    theirs = datasets.load_from_disk(str(folder)).with_format("numpy", dtype=np.int32)
    return Case(HFFolderSource(folder), lambda: (sample["tokens"] for sample in theirs), "tokens")


def tfrecord(folder: Path, count: int) -> Case:
    from tfrecord.reader import example_loader
    from tfrecord.writer import TFRecordWriter

    from holdfast.sources import TFRecordSource

    folder.mkdir()
    writer = TFRecordWriter(str(folder / "data.tfrecord"))
    for tokens in samples(count):
        writer.write({"tokens": (tokens.tobytes(), "byte")})
    writer.close()
    path = str(folder / "data.tfrecord")
    return Case(TFRecordSource(path), lambda: (sample["tokens"] for sample in example_loader(path, None)), "tokens")


def array_record(folder: Path, count: int) -> Case:
    from array_record.python.array_record_data_source import ArrayRecordDataSource
    from array_record.python.array_record_module import ArrayRecordWriter

    from holdfast.sources import ArrayRecordSource

    folder.mkdir()
    writer = ArrayRecordWriter(str(folder / "data.array_record"), "group_size:1")
    for tokens in samples(count):
        writer.write(tokens.tobytes())
    writer.close()
    theirs = ArrayRecordDataSource(str(folder / "data.array_record"))
    source = ArrayRecordSource(folder / "data.array_record")
    return Case(source, lambda: (theirs[number] for number in range(len(theirs))), "record")


def lance(folder: Path, count: int) -> Case:
    import lance as library
    import pyarrow as pa

    from holdfast.sources import LanceSource

    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(samples(count))), TOKENS)
    library.write_dataset(pa.table({"tokens": rows}), str(folder))
    theirs = library.dataset(str(folder))

    def read() -> Iterable[Any]:
        for batch in theirs.to_batches():
            yield from batch["tokens"].flatten().to_numpy().reshape(-1, TOKENS)

    return Case(LanceSource(folder), read, "tokens")


CASES = {
    "megatron": megatron,
    "mds": mds,
    "litdata": litdata,
    "hugging face": hugging_face,
    "tfrecord": tfrecord,
    "array_record": array_record,
    "lance": lance,
}
HELD = ("lance",)  # formats that a source decodes as a whole after it was read for a while


def checksum_rates() -> dict[str, float]:
    """MB/s of TFRecord's checksums, by NumPy and by the library that is used where it is installed."""
    from holdfast.sources.crc32c import crc32c_rows, crc32c_rows_numpy

    values = np.random.default_rng(1).integers(0, 256, 8 * 2**20).astype(np.uint8)
    starts = np.arange(0, len(values), 65_536)
    sides = {"numpy": crc32c_rows_numpy, "google_crc32c where installed": crc32c_rows}
    turns = {name: (lambda side=side: side(values, starts, starts + 65_536)) for name, side in sides.items()}
    taken = alternate(turns, rounds=3, clock=time.process_time)
    return {f"crc-32c, MB/s, {name}": len(values) / 1e6 / seconds for name, seconds in taken.items()}


def main() -> None:
    options = arguments(__doc__ or "")
    count = 2_000 if options.quick else 20_000
    figures: dict[str, float] = {}
    about: dict[str, Any] = {
        "samples": count,
        "bytes per sample": 4 * TOKENS,
        "holdfast batch": BATCH,
        "megatron loses because": "its reader gives views of the map, in order; a stream copies shuffled batches",
        "lance loses in its first epoch because": "its reader scans in order; a stream takes shuffled rows through the "
        "same library until a quarter of them were taken, and then scans",
        "array_record is near because": "nine tenths of the time is its library's own reading",
        "litdata and tfrecord are near because": "half of the time is copying shuffled rows of cold memory; their "
        "loaders decode the bytes of one stretch after another, and that of TFRecord leaves the checksums unchecked",
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, make in CASES.items():
            try:
                case = make(Path(folder) / name.replace(" ", "_"), count)
            except ImportError as error:
                about[name] = f"not installed: {error}"
                continue
            case.check()
            sides = {"ours": case.read_ours, "theirs": case.read_theirs}
            if name in HELD:
                sides["first"] = case.read_first  # after the others: it leaves the next one what it has decoded
            taken = alternate(sides, rounds=3 if options.quick else 5)
            figures[f"samples/s, {name}, holdfast"] = count / taken["ours"]
            figures[f"samples/s, {name}, its own loader"] = count / taken["theirs"]
            figures[f"ratio, {name}"] = taken["theirs"] / taken["ours"]
            if "first" in taken:
                figures[f"samples/s, {name}, holdfast, first epoch"] = count / taken["first"]
    figures |= checksum_rates()
    publish(figures, about, as_json=options.json)


if __name__ == "__main__":
    main()
