"""Loading a checkpoint: holdfast against torch's own reader, safetensors' own load, and a bare ``preadv`` loop.

Everything loads the same tensors into the same memory, which has been touched before, from a warm cache (and from a
cold one, where dropping the cache worked). The sides take turns; a ratio is the median of the ratios of the rounds.
The ``preadv`` loop knows where the payloads are and does nothing else: it is the limit.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import statistics
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from common import alternate, arguments, publish
from holdfast import checkpoint
from holdfast.checkpoint import ParallelFileSystemReader
from holdfast.checkpoint.files import CheckpointFile, LocalFiles
from holdfast.checkpoint.items import KnownItems
from holdfast.checkpoint.layouts import chunk_layout

PARTS = ("tiny", "fsspec", "manifest", "warm", "cold")
ROUNDS = 5
PIECE = 16 << 20
COLD_ROUNDS = 3
COLD_PAIR_ROUNDS = 11
THREADS = (1, 2, 4, 8, 16)
HINTS = {"sequential": os.POSIX_FADV_SEQUENTIAL, "will need": os.POSIX_FADV_WILLNEED}
"""What a reader may tell the kernel about a file that it is going to read."""
State = dict[str, torch.Tensor]
Side = Callable[[], object]


def make_state(total_bytes: int) -> State:
    """A model of layers: two large matrices and four small vectors each."""
    width = 2048
    layer = {
        "up": (width, 2 * width),
        "down": (2 * width, width),
        "q": (width, width),
        "norm": (width,),
        "bias": (width,),
    }
    layer_bytes = 4 * sum(torch.Size(shape).numel() for shape in layer.values())
    return {
        f"layers.{number}.{name}": torch.randn(shape)
        for number in range(max(1, total_bytes // layer_bytes))
        for name, shape in layer.items()
    }


def save(state: State, folder: Path, files: int) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, thread_count=files, sync_files=False), no_dist=True)


def stock(state: State, folder: Path) -> Side:
    return lambda: dcp.load(state, storage_reader=dcp.FileSystemReader(folder), no_dist=True)


def ours(state: State, folder: Path, **options: Any) -> Side:
    return lambda: dcp.load(state, storage_reader=ParallelFileSystemReader(folder, **options), no_dist=True)


def raw(state: State, folder: Path, threads: int, hint: int = os.POSIX_FADV_NORMAL) -> Side:
    """A loop of ``preadv`` over the payloads, straight into the destinations."""
    ranges = []
    metadata = dcp.FileSystemReader(folder).read_metadata()
    for index, info in metadata.storage_data.items():
        file = CheckpointFile(folder / info.relative_path, info.relative_path, LocalFiles())
        layout = chunk_layout(
            file, info.offset, info.length, KnownItems(), check=False, bound=None, on_read=lambda *_: None
        )
        file.close()
        assert layout is not None
        view = memoryview(state[index.fqn].view(-1).view(torch.uint8).numpy())
        start = info.offset + layout.payload_offset
        ranges += [
            (folder / info.relative_path, start + at, view[at : at + PIECE])
            for at in range(0, layout.payload_bytes, PIECE)
        ]
    ranges.sort(key=lambda entry: (str(entry[0]), entry[1]))

    def run() -> None:
        descriptors = {path: os.open(path, os.O_RDONLY) for path, _, _ in ranges}
        for descriptor in descriptors.values():
            os.posix_fadvise(descriptor, 0, 0, hint)
        queue, lock = iter(ranges), threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    entry = next(queue, None)
                if entry is None:
                    return
                path, offset, view = entry
                done = 0
                while done < len(view):
                    done += os.preadv(descriptors[path], [view[done:]], offset + done)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for descriptor in descriptors.values():
            os.close(descriptor)

    return run


def drop_cache(folder: Path) -> bool:
    """Ask the kernel to forget the files; says whether a mapping of one shows that it did."""
    os.sync()
    with contextlib.suppress(OSError):  # where that is permitted: whatever else is cached goes too
        Path("/proc/sys/vm/drop_caches").write_text("1")
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    largest = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    descriptor = os.open(largest, os.O_RDONLY)
    try:
        # RWF_NOWAIT reads only what is cached.
        os.preadv(descriptor, [bytearray(4096)], largest.stat().st_size // 2, os.RWF_NOWAIT)
    except (BlockingIOError, AttributeError):
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def median_of(rounds: list[dict[str, float]], over: str, under: str) -> float:
    return statistics.median(one[over] / one[under] for one in rounds)


def bench_large(figures: dict[str, float], about: dict[str, Any], folder: Path, total: int, cores: int) -> None:
    saved = make_state(total)
    size = sum(value.nbytes for value in saved.values())
    about["bytes"] = size
    state = {name: torch.zeros_like(value) for name, value in saved.items()}
    safetensors = safetensors_side(saved, state, folder / "safetensors", about)
    for files in (1, 8, 128):
        place = folder / f"files{files}"
        save(saved, place, files)
        sides: dict[str, Side] = {
            "stock": stock(state, place),
            "off": ours(state, place, verify="off"),
            "crc": ours(state, place, verify="crc"),
            "raw": raw(state, place, cores),
        }
        if safetensors is not None and files == 1:
            sides["safetensors"] = safetensors
        if files == 8:
            sides |= {f"workers{count}": ours(state, place, verify="off", num_workers=count) for count in THREADS}
        for side in sides.values():  # warm the cache, and the code
            side()
        rounds = [alternate(sides, 1) for _ in range(ROUNDS)]
        for name in sides:
            figures[f"{files} files, {name}: GB/s"] = size / 1e9 / statistics.median(one[name] for one in rounds)
        figures[f"{files} files, without verification: times stock"] = median_of(rounds, "stock", "off")
        figures[f"{files} files, with CRC: times stock"] = median_of(rounds, "stock", "crc")
        figures[f"{files} files, without verification: of raw preadv"] = median_of(rounds, "raw", "off")
        if files == 1 and safetensors is not None:
            figures["1 files, without verification: times safetensors"] = median_of(rounds, "safetensors", "off")
        assert all(torch.equal(state[name], value) for name, value in saved.items())
        shutil.rmtree(place)


def bench_cold(figures: dict[str, float], about: dict[str, Any], folder: Path, total: int) -> None:
    """From the disk: every number of workers beside bare reading, then the default beside the best bare reading.

    A disk that others use too is not the same from one second to the next, so the last two take turns for many rounds,
    with the bare reading twice: how far it is from itself tells what a ratio is worth.
    """
    saved = make_state(total)
    size = sum(value.nbytes for value in saved.values())
    state = {name: torch.zeros_like(value) for name, value in saved.items()}
    place = folder / "cold"
    save(saved, place, 8)
    if not drop_cache(place):
        about["cold cache"] = "not measured: the cache could not be dropped here"
        return
    sides: dict[str, Side] = {"stock": stock(state, place)}
    for threads in THREADS:
        sides[f"raw, {threads} threads"] = raw(state, place, threads)
        sides[f"crc, {threads} workers"] = ours(state, place, verify="crc", num_workers=threads)
    for name, hint in HINTS.items():
        sides[f"raw, {THREADS[-1]} threads, {name}"] = raw(state, place, THREADS[-1], hint)
    rounds = cold_rounds(sides, place, COLD_ROUNDS)
    medians = {name: statistics.median(one[name] for one in rounds) for name in sides}
    for name, seconds in medians.items():
        figures[f"8 files, cold cache, {name}: GB/s"] = size / 1e9 / seconds
    best = min((name for name in sides if name.startswith("raw")), key=medians.__getitem__)
    about["best raw reading"] = best
    pair: dict[str, Side] = {
        "raw": sides[best],
        "crc": ours(state, place, verify="crc"),
        "off": ours(state, place, verify="off"),
        "raw again": sides[best],
    }
    rounds = cold_rounds(pair, place, COLD_PAIR_ROUNDS)
    figures["8 files, cold cache, with CRC: GB/s"] = size / 1e9 / statistics.median(one["crc"] for one in rounds)
    figures["8 files, cold cache, best raw reading: GB/s"] = (
        size / 1e9 / statistics.median(one["raw"] for one in rounds)
    )
    figures["8 files, cold cache, with CRC: of the best raw reading"] = median_of(rounds, "raw", "crc")
    figures["8 files, cold cache, without verification: of the best raw reading"] = median_of(rounds, "raw", "off")
    figures["8 files, cold cache, the best raw reading: of itself"] = median_of(rounds, "raw", "raw again")
    figures["8 files, cold cache, with CRC: times stock"] = medians["stock"] / statistics.median(
        one["crc"] for one in rounds
    )


def cold_rounds(sides: dict[str, Side], place: Path, count: int) -> list[dict[str, float]]:
    """The seconds of each side in every round, in an order of its own: nobody always comes after the same neighbour."""
    order, shuffled = list(sides), random.Random(0)
    rounds = []
    for _ in range(count):
        one: dict[str, float] = {}
        shuffled.shuffle(order)
        for name in order:
            drop_cache(place)
            one |= alternate({name: sides[name]}, 1)
        rounds.append(one)
    return rounds


def bench_fsspec(figures: dict[str, float], saved: State, folder: Path) -> None:
    """Torch's fsspec reader beside ours, from the same store in memory: no network, only what each side adds."""
    import fsspec
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    state = {name: torch.zeros_like(value) for name, value in saved.items()}
    save(saved, folder / "fsspec", 8)
    url = "memory://bench/fsspec"
    store = fsspec.filesystem("memory")
    store.put(f"{folder / 'fsspec'}/", "/bench/fsspec/", recursive=True)
    sides: dict[str, Side] = {
        "torch": lambda: dcp.load(state, storage_reader=FsspecReader(url), no_dist=True),
        "holdfast": lambda: dcp.load(state, storage_reader=ParallelFileSystemReader(url), no_dist=True),
    }
    for side in sides.values():
        side()
    rounds = [alternate(sides, 1) for _ in range(ROUNDS)]
    figures["over fsspec, verified: times torch's fsspec reader"] = median_of(rounds, "torch", "holdfast")
    assert all(torch.equal(state[name], value) for name, value in saved.items())
    store.rm("/bench", recursive=True)
    shutil.rmtree(folder / "fsspec")


def bench_manifest(figures: dict[str, float], folder: Path, quick: bool) -> None:
    """What the manifest costs: the same tensors with one, and as torch saves them, where only each CRC is compared."""
    small = {f"t{number}": torch.randn(16) for number in range(2000 if quick else 10_000)}
    for kind, saved in (("large", make_state((256 << 20) if quick else (1 << 30))), ("small", small)):
        state = {name: torch.zeros_like(value) for name, value in saved.items()}
        save(saved, folder / "without", 8)
        checkpoint.save(saved, folder / "with", step=0, thread_count=8)
        sides = {name: ours(state, folder / name) for name in ("without", "with")}
        for side in sides.values():
            side()
        rounds = [alternate(sides, 1) for _ in range(2 * ROUNDS + 1)]
        figures[f"{len(saved)} {kind} tensors, with a manifest: times the load without"] = median_of(
            rounds, "with", "without"
        )
        assert all(torch.equal(state[name], value) for name, value in saved.items())
        for name in sides:
            shutil.rmtree(folder / name)


def safetensors_side(saved: State, state: State, folder: Path, about: dict[str, Any]) -> Side | None:
    try:
        from safetensors.torch import load_file, save_file
    except ImportError:
        about["safetensors"] = "not installed"
        return None
    folder.mkdir()
    save_file(saved, folder / "model.safetensors")

    def run() -> None:
        for name, value in load_file(folder / "model.safetensors").items():
            state[name].copy_(value)

    return run


def bench_tiny(figures: dict[str, float], folder: Path, quick: bool) -> None:
    """Where starting anything costs more than it brings."""
    for count, shape, repeat in (
        (1, (4,), 40),
        (10, (64, 64), 40),
        (100, (64, 64), 10),
        (2000 if quick else 10_000, (16,), 1),
    ):
        saved = {f"t{number}": torch.randn(shape) for number in range(count)}
        state = {name: torch.zeros_like(value) for name, value in saved.items()}
        place = folder / f"tiny{count}"
        save(saved, place, 1)

        def several(side: Side, times: int = repeat) -> Side:
            return lambda: [side() for _ in range(times)]

        sides = {"stock": several(stock(state, place)), "crc": several(ours(state, place))}
        for side in sides.values():
            side()
        rounds = [alternate(sides, 1) for _ in range(ROUNDS if count > 1000 else 2 * ROUNDS + 1)]
        figures[f"{count} tiny tensors: holdfast's time over stock's"] = median_of(rounds, "crc", "stock")
        shutil.rmtree(place)


def main() -> None:
    options = arguments(__doc__.splitlines()[0], parts=PARTS)
    warnings.simplefilter("ignore")
    figures: dict[str, float] = {}
    cores = len(os.sched_getaffinity(0))
    about: dict[str, Any] = {"torch": torch.__version__, "cores": cores, "rounds": ROUNDS}
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        if "tiny" in options.parts:
            bench_tiny(figures, folder, options.quick)
        if "fsspec" in options.parts:
            bench_fsspec(figures, make_state((64 << 20) if options.quick else (256 << 20)), folder)
        if "manifest" in options.parts:
            bench_manifest(figures, folder, options.quick)
        if "warm" in options.parts:
            bench_large(figures, about, folder, (256 << 20) if options.quick else (2 << 30), cores)
        if "cold" in options.parts:
            bench_cold(figures, about, folder, (256 << 20) if options.quick else (1 << 30))
    finally:
        shutil.rmtree(folder)
    publish(figures, about, as_json=options.json)


if __name__ == "__main__":
    main()
