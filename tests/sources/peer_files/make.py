"""Writes the files beside this one with the libraries whose formats they are; `sample` says what is in them.

They are kept, so that the tests need none of these libraries: mosaicml-streaming, litdata (with zstd), megatron-core,
tfrecord, array_record, pylance. Run it as ``python -m tests.sources.peer_files.make`` where they are installed.
"""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
COUNT = 24


def sample(number: int) -> dict[str, Any]:
    """Return a sample of every format that has such fields."""
    return {
        "n": number - 5,
        "text": f"héllo {number}",
        "data": bytes([number + 120]) * (number % 4),
        "ids": np.arange(number % 5 + 1, dtype=np.int32) * number,
        "matrix": np.arange((number % 3 + 1) * 2, dtype=np.float32).reshape(2, -1) + number,
        "score": number / 3,
        "flag": number % 2 == 0,
        "nested": {"a": [number, None], "b": "x"},
    }


def documents() -> list[list[np.ndarray[Any, Any]]]:
    """Return documents of sequences of tokens."""
    generator = np.random.default_rng(3)
    return [
        [generator.integers(0, 100, int(length)) for length in generator.integers(0, 6, generator.integers(1, 4))]
        for _ in range(COUNT)
    ]


def write_mds() -> None:
    from streaming import MDSWriter

    columns = {
        "n": "int",
        "text": "str",
        "data": "bytes",
        "ids": "ndarray:int32",
        "matrix": "ndarray",
        "score": "float64",
        "flag": "uint8",
        "nested": "json",
        "fixed": "ndarray:int16:2,3",
        "big": "str_int",
        "real": "str_float",
        "exact": "str_decimal",
    }
    for name, compression in (("raw", None), ("zstd", "zstd:7"), ("gz", "gz"), ("br", "br"), ("bz2", "bz2")):
        with MDSWriter(out=str(HERE / f"mds_{name}"), columns=columns, compression=compression, size_limit=2000) as out:
            for number in range(COUNT):
                more = {"fixed": np.full((2, 3), number, np.int16), "big": 10**25 + number}
                exact = {"real": number / 7, "exact": Decimal(number) / 7}
                out.write(sample(number) | more | exact | {"flag": np.uint8(number % 2 == 0)})
    with MDSWriter(out=str(HERE / "mds_pickle"), columns={"n": "int", "object": "pkl"}) as out:
        out.write({"n": 1, "object": {1, 2}})


def litdata_sample(number: int) -> dict[str, Any]:
    import torch

    made = sample(number)
    return made | {"matrix": torch.from_numpy(made["matrix"]), "array": made["matrix"].astype(np.float64)}


def litdata_row(number: int) -> dict[str, Any]:
    """Return what LitData keeps as a row of an Arrow table: no arrays."""
    made = sample(number)
    return {name: made[name] for name in ("n", "text", "data", "score", "flag", "nested")}


def litdata_tokens(number: int) -> Any:
    import torch

    yield torch.arange(number * 10, number * 10 + 37 + number, dtype=torch.int32)


def litdata_pickle(number: int) -> dict[str, Any]:
    return {"n": number, "object": {1, 2, number}}


def write_litdata() -> None:
    from litdata import TokensLoader, optimize

    few: dict[str, Any] = {"num_workers": 1, "verbose": False}
    for level in (None, "chunk", "batch", "sample"):
        packed: dict[str, Any] = {} if level is None else {"compression": "zstd", "compression_level": level}
        if level == "batch":
            packed["compression_batch_size"] = 4
        folder = str(HERE / f"litdata_{level or 'raw'}")
        optimize(litdata_sample, list(range(COUNT)), folder, chunk_size=10, **packed, **few)
    for name, packed in (("rows", {}), ("rows_zstd", {"compression": "zstd"})):
        optimize(litdata_row, list(range(COUNT)), str(HERE / f"litdata_{name}"), chunk_size=10, **packed, **few)
    folder = str(HERE / "litdata_tokens")
    optimize(litdata_tokens, list(range(COUNT)), folder, chunk_size=400, item_loader=TokensLoader(), **few)
    optimize(litdata_pickle, list(range(3)), str(HERE / "litdata_pickle"), chunk_size=10, **few)


def write_megatron() -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    for name, dtype, multimodal in (
        ("int32", np.int32, False),
        ("uint16", np.uint16, True),
        ("float32", np.float32, False),
        ("float64", np.float64, False),
    ):
        builder = IndexedDatasetBuilder(str(HERE / f"megatron_{name}.bin"), dtype=dtype, multimodal=multimodal)
        for document in documents():
            modes = [len(part) % 3 for part in document] if multimodal else None
            tokens = torch.from_numpy(np.concatenate(document))
            builder.add_document(tokens, [len(part) for part in document], modes)
        builder.finalize(str(HERE / f"megatron_{name}.idx"))


def write_tfrecord() -> None:
    from tfrecord.writer import TFRecordWriter

    for half in range(2):
        writer = TFRecordWriter(str(HERE / f"part-{half}.tfrecord"))
        for number in range(half * COUNT // 2, (half + 1) * COUNT // 2):
            made = sample(number)
            writer.write(
                {
                    "n": (made["n"], "int"),
                    "data": (made["data"], "byte"),
                    "score": (made["score"], "float"),
                    "ids": ([int(value) - 2**40 for value in made["ids"]], "int"),
                    "matrix": ([float(value) for value in made["matrix"].reshape(-1)], "float"),
                    "many": ([b"a" * size for size in range(number % 3 + 1)], "byte"),
                }
            )
        writer.close()


def write_array_record() -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(HERE / "part.array_record"), "group_size:4")
    for number in range(COUNT):
        writer.write(sample(number)["data"])
    writer.close()


if __name__ == "__main__":
    for old in HERE.iterdir():
        if old.is_dir() and old.name != "__pycache__":
            shutil.rmtree(old)
    write_mds()
    write_litdata()
    write_megatron()
    write_tfrecord()
    write_array_record()
