"""Converts any data that holdfast reads to Parquet or MDS: in parallel, and resumable after a kill.

The samples are cut into shards of one size; the content of a shard depends only on its number. A shard is written under
a temporary name and renamed when complete, so a rerun skips existing shards, unless one was truncated since. A plan in
the folder records what is converted, and how; a different plan for the same folder is rejected.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np

from holdfast.errors import ConfigError, HoldfastError, SourceError
from holdfast.sources.base import Source
from holdfast.sources.open_data import TokenLayout, open_data
from holdfast.sources.shard_writers import (
    arrow_table,
    check_compression,
    mds_encoding,
    mds_index,
    mds_samples,
    parquet_samples,
    write_mds,
    write_parquet,
)

__all__ = ["ConvertReport", "convert"]

Format = Literal["parquet", "mds"]
PLAN = "holdfast-convert.json"
ROWS_FOR_TYPES = 1000  # the types of Python objects
_ASIDE = ".convert-"


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """The result of a conversion.

    Attributes:
        source: where the samples came from.
        kind: the kind of data.
        destination: the folder they were written to.
        to: the format.
        samples: number of samples.
        shards: number of shards.
        written: number of shards that this run wrote; the others existed.
        bytes: total size of the shards.
        fingerprint: fingerprint of the samples that were read.
    """

    source: str
    kind: str
    destination: str
    to: Format
    samples: int
    shards: int
    written: int
    bytes: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class _Plan:
    """Everything that determines the bytes of the shards."""

    source: str
    layout: TokenLayout
    to: Format
    samples: int
    per_shard: int
    compression: str | None
    fingerprint: str
    encodings: dict[str, str]

    def name(self, number: int) -> str:
        return f"shard.{number:05d}.mds" if self.to == "mds" else f"part-{number:05d}.parquet"

    def rows(self, number: int) -> np.ndarray[Any, Any]:
        return np.arange(number * self.per_shard, min((number + 1) * self.per_shard, self.samples))

    @property
    def shards(self) -> int:
        return -(-self.samples // self.per_shard)

    def to_json(self) -> dict[str, Any]:
        chosen = ("to", "samples", "per_shard", "compression", "fingerprint", "encodings")
        return {"version": 1, **{name: getattr(self, name) for name in chosen}}


def convert(
    source: str,
    destination: str | os.PathLike[str],
    *,
    to: Format = "parquet",
    samples_per_shard: int = 65_536,
    compression: str | None = "zstd",
    workers: int = 2,
    layout: TokenLayout | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ConvertReport:
    """Write the samples of a source as Parquet or MDS, exactly.

    Args:
        source: a path, glob, folder or URL of any data that holdfast reads.
        destination: a folder; if it contains part of the same conversion, that is continued.
        to: ``parquet`` or ``mds``.
        samples_per_shard: samples per shard.
        compression: compression of Parquet files; MDS shards are not compressed.
        workers: number of processes.
        layout: how token files are cut, and the split to read.
        progress: called with the number of shards done and the total.
    """
    if to not in ("parquet", "mds") or samples_per_shard < 1 or workers < 1:
        raise ConfigError("to must be 'parquet' or 'mds', samples_per_shard and workers at least 1", to=to)
    if to == "parquet":
        check_compression(compression)
    kind, opened = open_data(source, layout)
    folder = Path(destination)
    with _writing(folder), _locked(folder):
        plan = _plan(source, layout or TokenLayout(), to, samples_per_shard, compression, opened)
        _check_plan(folder, plan)
        missing = [number for number in range(plan.shards) if not _is_there(plan, folder, number)]
        done = plan.shards - len(missing)
        for _ in _written(plan, folder, missing, workers, opened):
            done += 1
            if progress is not None:
                progress(done, plan.shards)
        shards = [(folder / plan.name(number), len(plan.rows(number))) for number in range(plan.shards)]
        if to == "mds":
            _write_whole(folder / "index.json", json.dumps(mds_index(shards, plan.encodings)).encode())
    size = sum(path.stat().st_size for path, _ in shards)
    opened.close()
    return ConvertReport(source, kind, str(folder), to, plan.samples, plan.shards, len(missing), size, plan.fingerprint)


def _plan(
    source: str, layout: TokenLayout, to: Format, per_shard: int, compression: str | None, opened: Source
) -> _Plan:
    count = len(opened)
    if not count:
        raise SourceError("there are no samples to convert", source=source)
    spread = np.unique(np.linspace(0, count - 1, min(count, ROWS_FOR_TYPES)).astype(np.int64))
    columns = opened.read(spread)
    if to == "mds":
        encodings = {name: mds_encoding(name, column) for name, column in columns.items()}
    else:
        import base64

        schema = arrow_table(columns).schema.serialize().to_pybytes()
        encodings = {"schema": base64.b64encode(schema).decode()}
    return _Plan(source, layout, to, count, per_shard, compression, opened.fingerprint(), encodings)


def _check_plan(folder: Path, plan: _Plan) -> None:
    """Write the plan of a new conversion, or compare it with the one being continued."""
    place, wanted = folder / PLAN, plan.to_json()
    for left in folder.glob(f"{_ASIDE}*"):
        left.unlink(missing_ok=True)
    if place.exists():
        try:
            found = json.loads(place.read_bytes())
        except ValueError:
            found = {}
        if found != wanted:
            differing = sorted(
                name for name in wanted if not isinstance(found, dict) or found.get(name) != wanted[name]
            )
            raise ConfigError(
                "the folder contains part of another conversion",
                folder=str(folder),
                differing=differing,
                hint="choose another folder, or empty this one",
            )
        return
    strange = sorted(entry.name for entry in folder.iterdir())
    if strange:
        raise ConfigError(
            "the folder is not empty", folder=str(folder), holds=strange[:5], hint="choose another folder"
        )
    _write_whole(place, json.dumps(wanted, indent=1).encode())


def _is_there(plan: _Plan, folder: Path, number: int) -> bool:
    """Return whether a shard exists and was not truncated since it was written."""
    path = folder / plan.name(number)
    found = (mds_samples if plan.to == "mds" else parquet_samples)(path) if path.exists() else None
    return found == len(plan.rows(number))


def _written(plan: _Plan, folder: Path, missing: list[int], workers: int, opened: Source) -> Iterator[int]:
    """Write the missing shards; yield the number of each when it is complete."""
    if workers == 1 or len(missing) < 2:
        for number in missing:
            _write_shard(plan, folder, number, opened)
            yield number
        return
    with ProcessPoolExecutor(
        min(workers, len(missing)), mp_context=get_context("spawn"), initializer=_start, initargs=(plan,)
    ) as pool:
        running = [pool.submit(_work, plan, folder, number) for number in missing]
        try:
            for future in as_completed(running):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_OPENED: dict[str, Source] = {}  # of a worker process, which does a single conversion


def _start(plan: _Plan) -> None:
    _OPENED["source"] = open_data(plan.source, plan.layout)[1]


def _work(plan: _Plan, folder: Path, number: int) -> int:
    _write_shard(plan, folder, number, _OPENED["source"])
    return number


def _write_shard(plan: _Plan, folder: Path, number: int, source: Source) -> None:
    columns = source.read(plan.rows(number))
    aside = folder / f"{_ASIDE}{os.getpid()}-{plan.name(number)}"
    if plan.to == "mds":
        write_mds(columns, aside, encodings=plan.encodings)
    else:
        write_parquet(columns, aside, schema=_schema(plan), compression=plan.compression)
    _publish(aside, folder / plan.name(number))


def _schema(plan: _Plan) -> Any:
    import base64

    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(plan.encodings["schema"])))


def _write_whole(path: Path, data: bytes) -> None:
    aside = path.with_name(f"{_ASIDE}{os.getpid()}-{path.name}")
    aside.write_bytes(data)
    _publish(aside, path)


def _publish(aside: Path, path: Path) -> None:
    """Rename a file once it is on disk."""
    with open(aside, "rb") as written:
        os.fsync(written.fileno())
    os.replace(aside, path)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Create the folder, and name it in an error if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if isinstance(error, HoldfastError):
            raise
        raise SourceError(
            f"the folder cannot be written to: {error.strerror}",
            folder=str(folder),
            hint="what was written is kept; run the same command again to continue",
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other conversions out of a folder; the lock ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError("another conversion is writing to the folder", folder=str(folder)) from error
        yield
    finally:
        os.close(descriptor)
