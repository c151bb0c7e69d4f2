"""Remote reading: megabytes per second beside plain parallel fetching, bytes fetched per byte needed, first batches.

A web server on loopback, in a process of its own, with latency, failures and a bandwidth cap; and moto's S3. ``plain``
fetches whole files with 8 threads into memory and looks at nothing; ``plain_kept`` also writes them to disk, as
holdfast does with the blocks it fetches. holdfast reads every sample through a stream: in order, by windows, in a full
shuffle; ``uncached`` is in order without the cache on disk, ``short`` with sequences of 1,024 tokens, so that there are
four times as many batches. A window has four stretches of 16 MiB or, on S3, where there is less, four files of 4
MiB. The sides take turns, and every round begins with empty caches. Peers read the same tokens in order, in their own
format. ``shards`` opens 10,000 Parquet files behind URLs at 50 ms per request: seconds to the first batch, with nothing
known of them and with what the first opening has kept, beside 128 threads that fetch the end of each file and do
nothing with it.
"""

from __future__ import annotations

import http.client
import io
import os
import shutil
import statistics
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from common import arguments, let_mosaic_import, publish
from holdfast import StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.order import WindowShuffle
from holdfast.sources import ParquetSource, RemoteOptions, TokenFileSource
from holdfast.sources.fetch import process
from remote_server import Remote, serve, serve_s3

Tokens = np.ndarray[Any, np.dtype[np.uint16]]

LENGTH, SHORT, BATCH, THREADS = 4096, 1024, 64, 8
CONDITIONS: dict[str, dict[str, float]] = {
    "0ms": {},
    "10ms": {"latency": 0.01},
    "50ms": {"latency": 0.05},
    "200ms": {"latency": 0.2},
    "50ms_1pc_errors": {"latency": 0.05, "errors": 0.01},
    "50ms_5pc_errors": {"latency": 0.05, "errors": 0.05},
    "50ms_1GBs": {"latency": 0.05, "bandwidth": 1e9},
    "50ms_100MBs": {"latency": 0.05, "bandwidth": 1e8},
}
QUICK = ("0ms", "50ms")
# WebDataset reads a tenth as fast as the others: beside these conditions only, and a part of the files.
WEBDATASET, WEBDATASET_FILES = ("0ms", "50ms", "200ms"), 2
SHARDS, QUICK_SHARDS = 10_000, 500
# The cap decides how long such a row takes, whatever reads it.
CAPPED, CAPPED_FILES = "50ms_100MBs", 16
# The length of a remote source's stretches by default, and how many of them a window has.
STRETCH_BYTES, STRETCHES = 16 * 2**20, 4


def plain(get: Callable[[str], bytes], names: list[str], folder: Path | None, threads: int = THREADS) -> int:
    """Fetch whole files with some threads; the bytes that came."""
    left, lock, total = list(names), threading.Lock(), [0]

    def work() -> None:
        while True:
            with lock:
                if not left:
                    return
                name = left.pop(0)
            data = get(name)
            if folder is not None:
                (folder / name.replace("/", "-")).write_bytes(data)
            with lock:
                total[0] += len(data)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return total[0]


class WebFiles:
    """Whole files from the server, or what the headers ask for, over one connection per thread."""

    def __init__(self, url: str, **headers: str) -> None:
        self._host = url.removeprefix("http://")
        self._headers = headers
        self._local = threading.local()

    def __call__(self, name: str) -> bytes:
        """Return a file, asked for until it comes."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection(self._host)
        while True:
            connection.request("GET", f"/{name}", headers=self._headers)
            answer = connection.getresponse()
            data: bytes = answer.read()
            if answer.status in (200, 206):
                return data


def stream(urls: list[str], shuffle: Any, options: RemoteOptions, length: int = LENGTH) -> dict[str, float]:
    """Read every sample; megabytes of tokens per second, and seconds until the first batch."""
    source = TokenFileSource(urls, length, out_dtype=np.uint16, remote=options)
    dataset = StreamDataset(source, name="tokens", shuffle=shuffle, seed=1)
    loader = StreamingShardLoader(dataset, StreamingConfig(rank=0, world_size=1, batch_size=BATCH, epochs=1))
    began, first, seen = time.perf_counter(), 0.0, 0
    for batch in loader:
        first = first or time.perf_counter() - began
        seen += batch["tokens"].numel() * 2
    return {"mbs": seen / 1e6 / (time.perf_counter() - began), "first": first}


@contextmanager
def empty_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ours(urls: list[str], window: WindowShuffle, storage: dict[str, Any]) -> dict[str, Callable[[], dict[str, float]]]:
    def side(shuffle: Any, length: int = LENGTH, **extra: Any) -> Callable[[], dict[str, float]]:
        def run() -> dict[str, float]:
            process._fetchers.clear()  # with the blocks they hold in memory
            with empty_folder() as cache:
                options = RemoteOptions(cache_dir=cache, storage_options=storage, first_pause=0.02, **extra)
                found = stream(urls, shuffle, options, length)
                process.fetcher_of(options).wait_until_idle()  # or what it still writes would outlive the folder
                return found

        return run

    return {
        "in_order": side("none"),
        "uncached": side("none", cache_limit=0),
        "window": side(window),
        "full": side("full"),
        "short_in_order": side("none", SHORT),
        "short_uncached": side("none", SHORT, cache_limit=0),
    }


def fetching(get: Callable[[str], bytes], names: list[str]) -> dict[str, Callable[[], dict[str, float]]]:
    def run(keep: bool) -> dict[str, float]:
        with empty_folder() as folder:
            began = time.perf_counter()
            count = plain(get, names, folder if keep else None)
            return {"mbs": count / 1e6 / (time.perf_counter() - began)}

    return {"plain": lambda: run(False), "plain_kept": lambda: run(True)}


def measure(
    sides: dict[str, Callable[[], dict[str, float]]], rounds: int, remote: Remote | None, conditions: dict[str, float]
) -> dict[str, float]:
    """Let the sides take turns; medians of all they report, and of what the server counted."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, side in sides.items():
            if remote is not None:
                remote.set(**conditions)
            report = side()
            if remote is not None:
                report["requests"], report["bytes"] = map(float, remote.counts())
            for kind, value in report.items():
                found.setdefault(f"{name}_{kind}", []).append(value)
    return {name: statistics.median(values) for name, values in found.items()}


def open_shards(folder: Path, remote: Remote, count: int) -> dict[str, float]:
    """Seconds from URLs to the first batch of many small files, the first time and once more, and requests sent.

    ``plain`` is as many threads as there may be connections that request the end of each file.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    made = folder / "shards"
    made.mkdir()
    parquet.write_table(pa.table({"n": [1, 2]}), made / "first.parquet")
    for number in range(count):  # one file under many names: no two URLs are the same to who reads them
        os.link(made / "first.parquet", made / f"{number:05}.parquet")
    urls = [f"{remote.url}/shards/{number:05}.parquet" for number in range(count)]
    figures = {}
    with empty_folder() as cache:
        remote.set(latency=0.05)
        began = time.perf_counter()
        plain(
            WebFiles(remote.url, Range="bytes=-65536"),
            [f"shards/{number:05}.parquet" for number in range(count)],
            None,
            threads=RemoteOptions().max_connections,
        )
        figures["plain_seconds"] = time.perf_counter() - began
        for turn in ("first", "again"):
            process._fetchers.clear()
            remote.set(latency=0.05)
            began = time.perf_counter()
            dataset = StreamDataset(
                ParquetSource(urls, remote=RemoteOptions(cache_dir=cache)), name="shards", shuffle="none"
            )
            loader = StreamingShardLoader(dataset, StreamingConfig(rank=0, world_size=1, batch_size=BATCH))
            batches = iter(loader)
            next(batches)
            figures[f"{turn}_seconds"] = time.perf_counter() - began
            batches.close()  # type: ignore[attr-defined]  # a generator; or it would fetch ahead in the next turn
            loader.close()
            figures[f"{turn}_requests"] = float(remote.counts()[0])
            figures[f"{turn}_to_plain"] = figures[f"{turn}_seconds"] / figures["plain_seconds"]
    shutil.rmtree(made)
    return figures


def write_tokens(folder: Path, files: int, size: int) -> list[str]:
    generator = np.random.default_rng(0)
    names = [f"{number:03}.bin" for number in range(files)]
    for name in names:
        (folder / name).write_bytes(generator.integers(0, 60_000, size // 2, dtype=np.uint16).tobytes())
    return names


def has_webdataset() -> bool:
    return find_spec("webdataset") is not None and shutil.which("curl") is not None


def write_tars(folder: Path, names: list[str]) -> list[str]:
    """Write the tokens of files as tar files beside them."""
    for name in names:
        tokens = np.fromfile(folder / name, dtype=np.uint16).reshape(-1, LENGTH)
        with tarfile.open(folder / f"{name}.tar", "w") as archive:
            for number, row in enumerate(tokens):
                member = tarfile.TarInfo(f"{name[:3]}{number:07}.bin")
                member.size = row.nbytes
                archive.addfile(member, io.BytesIO(row.tobytes()))
    return [f"{name}.tar" for name in names]


def webdataset_side(tars: list[str], place: str) -> Callable[[], dict[str, float]] | None:
    """WebDataset over tar files below a URL, through curl, as it reads URLs."""
    if not has_webdataset():
        return None
    import webdataset

    def run() -> dict[str, float]:
        samples = webdataset.WebDataset([f"{place}/{tar}" for tar in tars], shardshuffle=False, empty_check=False)
        return batches_of(np.frombuffer(sample["bin"], dtype=np.uint16) for sample in samples)

    return run


def s3_sides(
    folder: Path, names: list[str], endpoint: str, about: dict[str, Any]
) -> dict[str, Callable[[], dict[str, float]]]:
    """holdfast, plain s3fs, s3fs under torchdata, MosaicML streaming, LitData and WebDataset on moto's S3."""
    import fsspec

    storage = {"key": "test", "secret": "test", "endpoint_url": endpoint, "client_kwargs": {"region_name": "eu-west-1"}}
    system = fsspec.filesystem("s3", **storage)
    system.mkdir("bench", acl="public-read-write")
    for name in names:
        system.pipe_file(f"bench/{name}", (folder / name).read_bytes())
    sides = fetching(lambda name: system.cat_file(f"bench/{name}"), names)
    sides |= ours([f"s3://bench/{name}" for name in names], WindowShuffle(len(names), STRETCHES), storage)
    tars = write_tars(folder, names[:WEBDATASET_FILES])
    for tar in tars:
        system.pipe_file(f"bench/{tar}", (folder / tar).read_bytes(), acl="public-read")
    web = webdataset_side(tars, f"{endpoint}/bench")
    if web is not None:
        sides["webdataset"] = web
    rows = np.concatenate([np.fromfile(folder / name, dtype=np.uint16) for name in names]).reshape(-1, LENGTH)
    peers = {"s3fs_torchdata": torchdata_side, "mosaic": mosaic_side, "litdata": litdata_side}
    for name, make in peers.items():
        try:
            side = make(rows, names, system, endpoint)
            side()
            sides[name] = side
        except ImportError as error:  # noqa: PERF203  # a row that says so
            about[name] = f"not installed: {error}"
        except Exception as error:  # nor does one that cannot read from here end the bench
            about[name] = f"cannot read from this server: {error!r}"[:200]
    return sides


Side = Callable[[], dict[str, float]]


def batches_of(samples: Iterable[Any]) -> dict[str, float]:
    """Stack samples into batches; megabytes per second, and seconds until the first batch."""
    began, first, seen = time.perf_counter(), 0.0, 0
    batch: list[Any] = []
    for sample in samples:
        batch.append(np.asarray(sample))
        if len(batch) == BATCH:
            seen += np.stack(batch).nbytes
            batch = []
            first = first or time.perf_counter() - began
    return {"mbs": seen / 1e6 / (time.perf_counter() - began), "first": first}


def torchdata_side(rows: Tokens, names: list[str], system: Any, endpoint: str) -> Side:
    from torchdata.nodes import IterableWrapper, Loader, ParallelMapper

    def run() -> dict[str, float]:
        node = ParallelMapper(IterableWrapper(names), lambda name: system.cat_file(f"bench/{name}"), THREADS)
        files = (np.frombuffer(data, np.uint16).reshape(-1, LENGTH) for data in Loader(node))
        return batches_of(row for file in files for row in file)

    return run


def mosaic_side(rows: Tokens, names: list[str], system: Any, endpoint: str) -> Side:
    """MosaicML streaming over MDS shards as large as the files, in order, with its own fetching ahead."""
    let_mosaic_import()
    from streaming import MDSWriter, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    size = rows.nbytes // len(names)
    with empty_folder() as made:
        columns = {"tokens": f"ndarray:uint16:{LENGTH}"}
        with MDSWriter(out=str(made / "mds"), columns=columns, size_limit=size) as out:
            for row in rows:
                out.write({"tokens": row})
        system.put(str(made / "mds"), "bench/mds", recursive=True)

    def run() -> dict[str, float]:
        clean_stale_shared_memory()
        with empty_folder() as cache:
            dataset = StreamingDataset(
                remote="s3://bench/mds", local=str(cache / "local"), shuffle=False, batch_size=BATCH
            )
            return batches_of(sample["tokens"] for sample in dataset)

    return run


def litdata_side(rows: Tokens, names: list[str], system: Any, endpoint: str) -> Side:
    """LitData over chunks as large as the files, in order."""
    from litdata import StreamingDataset
    from litdata.streaming import downloader
    from litdata.streaming.writer import BinaryWriter

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no option for a server without TLS, as moto is
    size = rows.nbytes // len(names)
    with empty_folder() as made:
        writer = BinaryWriter(str(made / "litdata"), chunk_bytes=size)
        for number, row in enumerate(rows):
            writer[number] = {"tokens": row.tobytes()}  # as bytes, so that every side moves as many
        writer.done()
        writer.merge()
        system.put(str(made / "litdata"), "bench/litdata", recursive=True)

    def run() -> dict[str, float]:
        with empty_folder() as cache:
            options = {
                "endpoint_url": endpoint,
                "aws_access_key_id": "test",
                "aws_secret_access_key": "test",
                "region_name": "eu-west-1",
            }
            dataset = StreamingDataset(
                "s3://bench/litdata", cache_dir=str(cache), shuffle=False, storage_options=options
            )
            return batches_of(np.frombuffer(sample["tokens"], np.uint16) for sample in dataset)

    return run


def main() -> None:
    options = arguments(__doc__.splitlines()[0], parts=("web", "s3", "shards", *CONDITIONS))
    files, size, rounds = (8, 4 * 2**20, 1) if options.quick else (32, 8 * 2**20, 5)
    labels = list(QUICK if options.quick else CONDITIONS)
    chosen = [label for label in labels if label in options.parts] or (labels if "web" in options.parts else [])
    figures: dict[str, float] = {}
    about: dict[str, Any] = {
        "files": files,
        "file_bytes": size,
        "rounds": rounds,
        "batch": f"{BATCH} x {LENGTH} uint16",
    }
    if not has_webdataset():
        about["webdataset"] = "not installed, or without curl, which it reads URLs through"
    about["mosaic and litdata"] = "do not read from web servers: beside S3 only"
    with empty_folder() as folder:
        names = write_tokens(folder, files, size)
        if chosen:
            with serve(folder) as remote:
                web = webdataset_side(write_tars(folder, names[:WEBDATASET_FILES]), remote.url)
                for label in chosen:
                    some = names[:CAPPED_FILES] if label == CAPPED else names
                    window = WindowShuffle(max(1, len(some) * size // STRETCH_BYTES), STRETCHES)
                    sides = fetching(WebFiles(remote.url), some)
                    sides |= ours([f"{remote.url}/{name}" for name in some], window, {})
                    with_peer = {**sides, "webdataset": web} if web and label in WEBDATASET else sides
                    if label not in QUICK:
                        with_peer = {name: side for name, side in with_peer.items() if not name.startswith("short")}
                    found = rows(measure(with_peer, rounds, remote, CONDITIONS[label]), len(some) * size)
                    print(label, found, file=sys.stderr, flush=True)
                    figures |= {f"{label}_{name}": value for name, value in found.items()}
        if "shards" in options.parts:
            count = QUICK_SHARDS if options.quick else SHARDS
            about["shards"] = count
            with serve(folder) as remote:
                figures |= {f"shards_{name}": value for name, value in open_shards(folder, remote, count).items()}
        if "s3" in options.parts:
            few = [f"half-{name}" for name in names[:8]]  # moto, and peers on it, are slow
            for name in few:
                (folder / name).write_bytes((folder / name.removeprefix("half-")).read_bytes()[: size // 2])
            with serve_s3() as endpoint:
                # How MosaicML streaming and LitData are told of an S3 that is not Amazon's.
                os.environ |= {
                    "S3_ENDPOINT_URL": endpoint,
                    "AWS_ENDPOINT_URL": endpoint,
                    "AWS_ACCESS_KEY_ID": "test",
                    "AWS_SECRET_ACCESS_KEY": "test",
                    "AWS_DEFAULT_REGION": "eu-west-1",
                }
                found = measure(s3_sides(folder, few, endpoint, about), rounds, None, {})
            figures |= {f"s3_{name}": value for name, value in rows(found, len(few) * size // 2).items()}
    publish(figures, about, as_json=options.json)


def rows(found: dict[str, float], needed: int) -> dict[str, float]:
    """What is published of a condition: rates, ours beside plain fetching, bytes per byte needed, first batches."""
    made = {name: value for name, value in found.items() if name.endswith(("_mbs", "_first"))}
    for side in ("in_order", "window", "full", "short_in_order"):
        if f"{side}_mbs" not in found:
            continue
        made[f"{side}_to_plain_kept"] = found[f"{side}_mbs"] / found["plain_kept_mbs"]
        if f"{side}_bytes" in found:
            made[f"{side}_bytes_per_byte"] = found[f"{side}_bytes"] / needed
    if "short_uncached_mbs" in found:
        made["short_uncached_to_plain"] = found["short_uncached_mbs"] / found["plain_mbs"]
    made["uncached_to_plain"] = found["uncached_mbs"] / found["plain_mbs"]
    made["in_order_to_plain"] = found["in_order_mbs"] / found["plain_mbs"]
    return made


if __name__ == "__main__":
    main()
