"""Random damage to whole checkpoints: what verify says must be what a load does, and neither may be wrong.

Run as a program it makes mutations and prints what came of them, as JSON:
``python -m tests.faults.checkpoint_soak FOLDER KIND FIRST COUNT``. The kinds: ``files`` damages any file of a
checkpoint with a manifest, ``metadata`` only its ``.metadata``; ``stock`` any file of one that torch saved, without
a manifest, and ``described`` only its ``.metadata``. ``rewritten`` changes the pickle of an item of such a one, with
all checksums made right, so that something else may well load: then verify must say that it does.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import logging
import pickle
import random
import shutil
import sys
import types
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.checkpoint.support import random_bits, raw_bytes
from tests.faults.checkpoint_rewritten import rewritten
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from holdfast import checkpoint
from holdfast.checkpoint import verify_checkpoint
from holdfast.errors import HoldfastError

SLOW_SECONDS = 60.0
"""A single mutation that takes this long is a hang: the process ends and says where it was."""
STOCK = ("stock", "described", "rewritten")
METADATA_ONLY = ("metadata", "described")
LOADED = {"equal", "renamed", "different"}
# Nothing in torch's own format could tell a name from another, or what was saved from what was rewritten.
ALLOWED = {
    "stock": {"equal", "renamed"},
    "described": {"equal", "renamed"},
    "rewritten": {"equal", "renamed", "different"},
}


def saved() -> dict[str, Any]:
    options = types.SimpleNamespace(lr=0.1, betas=(0.9, 0.95), scale=np.float64(2.5), names=["a", "b"])
    held = torch.nn.Parameter(random_bits(4, 3, seed=4))
    held.owner = "a user"  # type: ignore[attr-defined]
    return {
        "model": {
            "matrix": random_bits(30, 20, seed=1),
            **{f"same{number}": random_bits(30, 20, seed=10 + number) for number in range(4)},  # read by comparison
            "half": random_bits(9, 5, dtype=torch.bfloat16, seed=3),
            "scalar": torch.tensor(1.5),
            "empty": torch.zeros(0, 3),
        },
        "step": 5,
        "options": options,
        "held": (held, torch.eye(3).to_sparse(), random_bits(5, seed=5)[1:3]),  # an object with tensors in it
        "rng": np.random.RandomState(3).get_state(legacy=False)["state"]["key"],
    }


def make(folder: Path, kind: str) -> None:
    """Save the checkpoint that is damaged."""
    if kind in STOCK:
        dcp_save(saved(), storage_writer=FileSystemWriter(folder, sync_files=False), no_dist=True)
    else:
        checkpoint.save(saved(), folder, step=5)


def loaded(folder: Path) -> dict[str, Any]:
    """Load whatever the metadata says is there."""
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    checkpoint.load({}, folder, planner=planner, num_workers=1)
    return planner.original_state_dict  # torch has the planner fill a state of its own where the caller's is empty


def stored_parts(value: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a tensor is made of: a sparse one may be larger than any memory."""
    if value.layout is torch.sparse_coo:
        return [value._indices(), value._values()]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [value.crow_indices(), value.col_indices(), value.values()]
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [value.ccol_indices(), value.row_indices(), value.values()]
    return [value.to_dense()]


def fingerprint(value: Any) -> Any:
    """Something equal exactly when the values are, bit for bit."""
    if isinstance(value, torch.Tensor):
        held = [raw_bytes(part) for part in stored_parts(value)]
        return (str(value.dtype), str(value.layout), tuple(value.shape), held, fingerprint(vars(value)))
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, dict):
        return {key: fingerprint(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return (type(value), *map(fingerprint, value))
    return repr(value)


def same_but_for_names(state: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether two states agree on every name they share: a model that is loaded misses the others, and says so."""
    left, right = flatten_state_dict(state)[0], flatten_state_dict(expected)[0]
    return all(fingerprint(left[name]) == fingerprint(right[name]) for name in left.keys() & right.keys())


def mutate(chance: random.Random, data: bytes, other: bytes) -> bytes:
    """Damage some bytes, in one of the ways bytes get damaged."""
    changed = bytearray(data)
    place = chance.randrange(len(changed))
    length = min(chance.choice((1, 2, 8, 64, 700)), len(changed) - place)
    way = chance.randrange(8)
    if way <= 2:
        changed[place] ^= 1 << chance.randrange(8)
    elif way == 3:
        changed[place] = chance.randrange(256)
    elif way == 4:
        changed[place : place + length] = bytes(length)
    elif way == 5:
        source = chance.randrange(len(other))
        changed[place : place + length] = other[source : source + length].ljust(length, b"\0")[:length]
    elif way == 6:
        del changed[place : place + length]
    else:
        changed[place:place] = chance.randbytes(length)
    return bytes(changed)


def with_item_rewritten(
    chance: random.Random, metadata: Metadata, whole: dict[Path, bytes], folder: Path
) -> dict[Path, bytes]:
    """The files with one item changed, put behind the others, and found there."""
    changed = copy.deepcopy(metadata)
    place = changed.storage_data[chance.choice(list(changed.storage_data))]
    path = folder / place.relative_path
    item = rewritten(chance, whole[path][place.offset : place.offset + place.length])
    place.offset, place.length = len(whole[path]), len(item)
    return {path: whole[path] + item, folder / ".metadata": pickle.dumps(changed)}


def with_bytes_damaged(chance: random.Random, whole: dict[Path, bytes]) -> dict[Path, bytes]:
    """One of the files, damaged."""
    files = list(whole)
    path = chance.choice(files)
    return {path: mutate(chance, whole[path], whole[chance.choice(files)])}


def judged(folder: Path, expected: dict[str, Any]) -> tuple[str, str]:
    """What verify says, and what a load does."""
    try:
        verdict = verify_checkpoint(folder, num_workers=1).verdict
    except HoldfastError:
        verdict = "unusable"
    except Exception as error:
        verdict = f"foreign {type(error).__name__}"
    try:
        state = loaded(folder)
    except HoldfastError:
        return verdict, "refused"
    except BaseException as error:
        return verdict, f"foreign {type(error).__name__}"
    if fingerprint(state) == fingerprint(expected):
        return verdict, "equal"
    return verdict, "renamed" if same_but_for_names(state, expected) else "different"


def run(folder: Path, kind: str, first: int, count: int) -> Counter[str]:
    """Try mutations ``first`` to ``first + count``; the same number is always the same mutation."""
    shutil.rmtree(folder, ignore_errors=True)
    make(folder, kind)
    expected = loaded(folder)
    assert fingerprint(expected) == fingerprint(saved())
    whole = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    damaged = {path: data for path, data in whole.items() if kind not in METADATA_ONLY or path.name == ".metadata"}
    metadata = FileSystemReader(folder).read_metadata()
    outcomes = Counter[str]()
    for number in range(first, first + count):
        faulthandler.dump_traceback_later(SLOW_SECONDS, exit=True)
        chance = random.Random(f"{kind} {number}")
        if kind == "rewritten":
            files = with_item_rewritten(chance, metadata, whole, folder)
        else:
            files = with_bytes_damaged(chance, damaged)
        for path, data in files.items():
            path.write_bytes(data)
        verdict, outcome = judged(folder, expected)
        for path in files:
            path.write_bytes(whole[path])
        what = f"{kind} {number} {'/'.join(path.name for path in files)}"
        outcomes[f"{verdict}, {outcome}"] += 1
        if (verdict == "sound") != (outcome in LOADED):
            outcomes["disagree"] += 1
            print(f"{what}: verify says {verdict}, load: {outcome}", file=sys.stderr)
        if outcome in LOADED - ALLOWED.get(kind, {"equal"}):
            outcomes["silent"] += 1
            print(f"{what}: loads something else", file=sys.stderr)
    faulthandler.cancel_dump_traceback_later()
    return outcomes


if __name__ == "__main__":
    faulthandler.enable()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    print(json.dumps(run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
