"""Images: JPEG files decoded in worker processes per second, beside WebDataset and LitData with the same decoder.

Pictures of 500 x 375 pixels (about as large as those of ImageNet) are stored as JPEG in tar files and in LitData's
chunks, by the libraries' own writers. Every side decodes them with Pillow to 224 x 224, in as many worker processes, in
batches of as many, in the order they lie; one epoch is timed from making the loader to its last batch, starting the
workers included. Decoding is most of the work and the same for all, so the sides should be near one another.
"""

from __future__ import annotations

import io
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from common import alternate, arguments, publish
from holdfast import StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.sources import LitDataSource, TarSource

BATCH, WORKERS, SHARDS = 32, 2, 4
WIDTH, HEIGHT, SIDE = 500, 375, 224


def pictures(count: int) -> list[bytes]:
    """Make JPEG files: smooth colours with some noise, which take about as many bytes as photographs."""
    from PIL import Image

    generator = np.random.default_rng(3)
    made = []
    for _ in range(count):
        coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((WIDTH, HEIGHT))
        noisy = np.asarray(coarse) + generator.normal(0, 12, (HEIGHT, WIDTH, 1))
        out = io.BytesIO()
        Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=85)
        made.append(out.getvalue())
    return made


def pixels_of(jpeg: Any) -> np.ndarray[Any, Any]:
    """Decode a picture, as every side does."""
    from PIL import Image

    with Image.open(io.BytesIO(bytes(jpeg))) as image:
        return np.array(image.convert("RGB").resize((SIDE, SIDE)))  # writable, as torch wants it


def decoded(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample of any of the libraries with its pixels."""
    return {"pixels": pixels_of(sample["jpg"])}


def holdfast_side(source: TarSource | LitDataSource) -> Callable[[], int]:
    def run() -> int:
        dataset = StreamDataset(source, name="images", shuffle="none", transform=decoded)
        config = StreamingConfig(rank=0, world_size=1, batch_size=BATCH, num_workers=WORKERS, epochs=1)
        return sum(len(batch["pixels"]) for batch in StreamingShardLoader(dataset, config))

    return run


def webdataset_side(folder: Path, jpegs: list[bytes]) -> Callable[[], int]:
    import webdataset

    each = -(-len(jpegs) // SHARDS)
    with webdataset.ShardWriter(str(folder / "%03d.tar"), maxcount=each, verbose=0) as out:
        for number, jpeg in enumerate(jpegs):
            out.write({"__key__": f"{number:06}", "jpg": jpeg})
    shards = sorted(map(str, folder.glob("*.tar")))

    def run() -> int:
        samples = webdataset.WebDataset(shards, shardshuffle=False).map(decoded).batched(BATCH)
        loader = webdataset.WebLoader(samples, batch_size=None, num_workers=WORKERS)
        return sum(len(batch["pixels"]) for batch in loader)

    return run


def litdata_side(folder: Path, jpegs: list[bytes]) -> Callable[[], int]:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_size=-(-len(jpegs) // SHARDS))
    for number, jpeg in enumerate(jpegs):
        writer[number] = {"jpg": jpeg}
    writer.done()
    writer.merge()

    def run() -> int:
        dataset = StreamingDataset(str(folder), shuffle=False, transform=decoded)
        loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)
        return sum(len(batch["pixels"]) for batch in loader)

    return run


def processor_seconds() -> float:
    """Processor time of this process and of the workers that have ended, which other work on the machine leaves be."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def counted(run: Callable[[], int], used: list[float]) -> None:
    """Run a side and record the processor time that it took."""
    before = processor_seconds()
    run()
    used.append(processor_seconds() - before)


def main() -> None:
    options = arguments(__doc__ or "")
    count, rounds = (256, 1) if options.quick else (2_048, 5)
    jpegs = pictures(count)
    about: dict[str, Any] = {
        "images": count,
        "bytes per image": round(float(np.mean([len(jpeg) for jpeg in jpegs]))),
        "workers": WORKERS,
        "batch": BATCH,
    }
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        makers = {
            "webdataset": (webdataset_side, lambda folder: TarSource(str(folder / "*.tar"))),
            "litdata": (litdata_side, LitDataSource),
        }
        for peer, (make, opened) in makers.items():
            folder = Path(name) / peer
            folder.mkdir()
            try:
                theirs = make(folder, jpegs)
            except ImportError as error:
                about[peer] = f"not installed: {error}"
                continue
            sides = {"ours": holdfast_side(opened(folder)), "theirs": theirs}
            for side, run in sides.items():
                if run() != count:
                    raise SystemExit(f"{peer}: {side} did not give every image once")
            used: dict[str, list[float]] = {side: [] for side in sides}
            taken = alternate({side: partial(counted, run, used[side]) for side, run in sides.items()}, rounds)
            figures[f"images/s, files of {peer}, holdfast"] = count / taken["ours"]
            figures[f"images/s, files of {peer}, its own loader"] = count / taken["theirs"]
            figures[f"ratio, images, {peer}"] = taken["theirs"] / taken["ours"]
            figures[f"ratio of processor time, images, {peer}"] = median(used["theirs"]) / median(used["ours"])
    publish(figures, about, as_json=options.json)


if __name__ == "__main__":
    main()
