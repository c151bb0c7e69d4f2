"""20,000 small files: seconds from nothing to the first batch, when the folder is opened first and when it is again.

Every format gets a folder of as many files with two samples each, no two files alike, in memory (/dev/shm) where there
is such a place. Each opening is a process of its own, imports not counted. The first one finds no index and reads every
file; the next one finds the index that the first has left (JSON lines, tars) or reads what it needs again (Parquet's
footers, sizes of token files). Wall clock and CPU are both told: on a busy machine the wall clock says little.
"""

from __future__ import annotations

import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from common import arguments, publish

FILES, QUICK_FILES = 20_000, 1_000
MAX_SECONDS = 2.0  # what is promised of a core that does nothing else

OPEN = """
import sys, time
import numpy, pandas, pyarrow.json, pyarrow.parquet, torch
from holdfast.sources import JsonlSource, ParquetSource, TarSource, TokenFileSource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader
make = {"jsonl": JsonlSource, "tar": TarSource, "parquet": ParquetSource, "tokens": lambda at: TokenFileSource(at, 16)}
wall, cpu = time.perf_counter(), time.process_time()
dataset = StreamDataset(make[sys.argv[1]](sys.argv[2]), name="small")
loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=64))
batches = iter(loader)
next(batches)
print(time.perf_counter() - wall, time.process_time() - cpu)
batches.close()
"""


def jsonl(number: int) -> bytes:
    """Two lines."""
    return b"".join(json.dumps({"n": 2 * number + line}).encode() + b"\n" for line in range(2))


def tar(number: int) -> bytes:
    """Two samples of one member."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for line in range(2):
            text = b"%d" % (2 * number + line)
            member = tarfile.TarInfo(f"{2 * number + line:06d}.txt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return out.getvalue()


def rows(number: int) -> bytes:
    """Two rows of Parquet."""
    out = io.BytesIO()
    parquet.write_table(pa.table({"n": [2 * number, 2 * number + 1]}), out)
    return out.getvalue()


def tokens(number: int) -> bytes:
    """Two sequences of tokens."""
    return np.arange(number, number + 32, dtype="<u2").tobytes()


FORMATS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "tokens": ("bin", tokens),
    "jsonl": ("jsonl", jsonl),
    "tar": ("tar", tar),
    "parquet": ("parquet", rows),
}


def opened(kind: str, folder: Path) -> tuple[float, float]:
    """Wall clock and CPU seconds to the first batch, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", OPEN, kind, str(folder)], capture_output=True, text=True, check=True)
    wall, cpu = map(float, done.stdout.split())
    return wall, cpu


def main() -> None:
    options = arguments(__doc__ or "", parts=list(FORMATS))
    count, rounds = (QUICK_FILES, 1) if options.quick else (FILES, 5)
    memory = Path("/dev/shm")
    figures: dict[str, float] = {}
    for kind in options.parts:
        suffix, content = FORMATS[kind]
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
            folder = Path(name)
            for number in range(count):
                (folder / f"{number:05d}.{suffix}").write_bytes(content(number))
            found: dict[str, list[tuple[float, float]]] = {"first": [], "again": []}
            for _ in range(rounds):
                for index in folder.glob("*-index"):
                    index.unlink()
                for turn in found.values():
                    turn.append(opened(kind, folder))
        for turn, seconds in found.items():
            wall, cpu = (statistics.median(each) for each in zip(*seconds, strict=True))
            figures[f"{kind}_{turn}_seconds"], figures[f"{kind}_{turn}_cpu_seconds"] = wall, cpu
    publish(figures, {"files": count, "promised": f"below {MAX_SECONDS} s on a quiet core"}, as_json=options.json)


if __name__ == "__main__":
    main()
