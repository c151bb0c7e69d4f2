"""The peers bench/stream.py and bench/resume.py measure: each builds an iterable of batches over the same data.

A peer's builder imports it inside, so that one that is not installed is a row that says so and nothing else fails.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

BATCH = 64


class Peer(NamedTuple):
    """A name, whether it resumes in mid-epoch with exactly the batches that were left, and how to begin an epoch."""

    name: str
    resumes_exactly: bool
    build: Callable[[], Callable[[], Iterable[Any]]]


class GatherDataset(torch.utils.data.Dataset[Any]):
    """Map-style, read a batch at a time: the fastest way into torch's loaders."""

    def __init__(self, tokens: np.ndarray[Any, Any]) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.tokens[index])

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.from_numpy(self.tokens[indices])


def same(batch: Any) -> Any:
    return batch


def token_peers(tokens: np.ndarray[Any, Any], folder: Path) -> list[Peer]:
    """Peers for tokens in memory, shuffled, in batches of 64; those that need files of their own get fewer samples."""
    few = tokens[: min(len(tokens), 4_000)]

    def torchdata() -> Callable[[], Iterable[Any]]:
        from torchdata.stateful_dataloader import StatefulDataLoader

        data = torch.utils.data.TensorDataset(torch.from_numpy(tokens))
        return lambda: StatefulDataLoader(data, batch_size=BATCH, shuffle=True)

    def torchdata_gather() -> Callable[[], Iterable[Any]]:
        from torchdata.stateful_dataloader import StatefulDataLoader

        data = GatherDataset(tokens)
        return lambda: StatefulDataLoader(data, batch_size=BATCH, shuffle=True, collate_fn=same)

    def datasets() -> Callable[[], Iterable[Any]]:
        import pyarrow
        from datasets import Dataset

        flat = pyarrow.array(tokens.reshape(-1))
        table = pyarrow.table({"tokens": pyarrow.FixedSizeListArray.from_arrays(flat, tokens.shape[1])})
        data = Dataset(table).with_format("torch").shuffle(seed=1)
        return lambda: data.iter(batch_size=BATCH)

    def grain() -> Callable[[], Iterable[Any]]:
        import grain.python as grain

        data = grain.MapDataset.source(tokens).shuffle(seed=1).batch(BATCH)
        # Its fastest setting for data in memory; its sixteen threads would slow down every other side as well.
        options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        return lambda: iter(data.to_iter_dataset(options))

    def litdata() -> Callable[[], Iterable[Any]]:
        import litdata
        from litdata.streaming.item_loader import TokensLoader
        from litdata.streaming.writer import BinaryWriter

        target = folder / "litdata"
        target.mkdir(exist_ok=True)
        loader = TokensLoader(block_size=tokens.shape[1])  # eight times as fast here as its default
        writer = BinaryWriter(str(target), chunk_bytes="64MB", item_loader=loader)
        for number, row in enumerate(few):
            writer.add_item(number, torch.from_numpy(row))
        writer.done()
        writer.merge()
        data = litdata.StreamingDataset(str(target), shuffle=True, seed=1, item_loader=loader)
        return lambda: litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=0)

    def webdataset() -> Callable[[], Iterable[Any]]:
        import webdataset

        path = folder / "tokens.tar"
        with tarfile.open(path, "w") as tar:
            for number, row in enumerate(few):
                data = BytesIO()
                np.save(data, row)
                member = tarfile.TarInfo(f"{number:08d}.npy")
                member.size = data.tell()
                data.seek(0)
                tar.addfile(member, data)
        pipeline = webdataset.WebDataset(str(path), shardshuffle=False).shuffle(1000).decode().to_tuple("npy")
        return lambda: pipeline.batched(BATCH)

    def mosaic() -> Callable[[], Iterable[Any]]:
        from streaming import MDSWriter, StreamingDataset

        target = folder / "mds"
        with MDSWriter(out=str(target), columns={"tokens": f"ndarray:int32:{tokens.shape[1]}"}) as writer:
            for row in few:
                writer.write({"tokens": row})
        data = StreamingDataset(local=str(target), shuffle=True, batch_size=BATCH)
        return lambda: torch.utils.data.DataLoader(data, batch_size=BATCH)

    return [
        Peer("torchdata, item by item", True, torchdata),
        Peer("torchdata, hand-written batch gather", True, torchdata_gather),
        Peer("litdata", True, litdata),
        Peer("grain", True, grain),
        Peer("mosaic", True, mosaic),
        Peer("datasets", False, datasets),
        Peer("webdataset", False, webdataset),
    ]


class LineDataset(torch.utils.data.Dataset[Any]):
    """JSON lines by offset, tokenised one by one."""

    def __init__(self, path: Path, tokenizer: Any) -> None:
        self.path, self.tokenizer = path, tokenizer
        ends = np.flatnonzero(np.frombuffer(path.read_bytes(), dtype=np.uint8) == 10)
        self.starts = np.concatenate(([0], ends[:-1] + 1))
        self.lengths = ends - self.starts
        self.file: Any = None

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = open(self.path, "rb")  # noqa: SIM115  # kept open by the worker for as long as it lives
        self.file.seek(int(self.starts[index]))
        text = json.loads(self.file.read(int(self.lengths[index])))["text"]
        return torch.tensor(self.tokenizer.encode(text).ids)


class RowTokens:
    """A datasets transform that tokenises a batch of rows."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, rows: dict[str, list[str]]) -> dict[str, list[Any]]:
        """Tokenise."""
        return {"ids": [torch.tensor(self.tokenizer.encode(text).ids) for text in rows["text"]]}


def text_peers(path: Path, tokenizer: Any, folder: Path) -> list[Peer]:
    """Peers for JSON lines tokenised in two worker processes."""

    def torchdata() -> Callable[[], Iterable[Any]]:
        from torchdata.stateful_dataloader import StatefulDataLoader

        data = LineDataset(path, tokenizer)
        return lambda: StatefulDataLoader(data, batch_size=BATCH, shuffle=True, num_workers=2, collate_fn=same)

    def datasets() -> Callable[[], Iterable[Any]]:
        from datasets import Dataset
        from torchdata.stateful_dataloader import StatefulDataLoader

        data: Any = Dataset.from_json(str(path), cache_dir=str(folder / "hf")).with_transform(RowTokens(tokenizer))
        return lambda: StatefulDataLoader(data, batch_size=BATCH, shuffle=True, num_workers=2, collate_fn=same)

    return [Peer("torchdata", True, torchdata), Peer("datasets", True, datasets)]


def parquet_peers(path: Path, folder: Path) -> list[Peer]:
    """Peers for rows of different lengths in a Parquet file."""

    def datasets() -> Callable[[], Iterable[Any]]:
        from datasets import Dataset
        from torchdata.stateful_dataloader import StatefulDataLoader

        data: Any = Dataset.from_parquet(str(path), cache_dir=str(folder / "hf")).with_format("torch")
        return lambda: StatefulDataLoader(data, batch_size=BATCH, shuffle=True, collate_fn=same)

    def torchdata() -> Callable[[], Iterable[Any]]:
        from torchdata.stateful_dataloader import StatefulDataLoader

        data = GroupedRows(path)
        return lambda: StatefulDataLoader(data, batch_size=BATCH, shuffle=True, collate_fn=same)

    return [Peer("datasets", True, datasets), Peer("torchdata, all rows in memory", True, torchdata)]


class GroupedRows(torch.utils.data.Dataset[Any]):
    """A Parquet column decoded whole into memory, row by row."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet

        rows = pyarrow.parquet.read_table(path)["ids"].combine_chunks()
        self.values, self.offsets = torch.from_numpy(rows.values.to_numpy().copy()), rows.offsets.to_pylist()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Any:
        return self.values[self.offsets[index] : self.offsets[index + 1]]


def samples_of(batch: Any) -> int:
    """How many samples a peer's batch holds, whatever its shape."""
    while isinstance(batch, (dict, tuple)) or (isinstance(batch, list) and len(batch) == 1):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return len(batch)


def repeated(begin: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Batches for ever, epoch after epoch."""
    while True:
        yield from begin()
