"""Random damage to whole checkpoints: what verify says must be what a load does, and neither may be wrong.

Run as a program it makes mutations and prints what came of them, as JSON:
``python -m tests.faults.checkpoint_soak FOLDER KIND FIRST COUNT``. The kinds: ``files`` damages any file of a
checkpoint with a manifest, ``metadata`` only its ``.metadata``, and ``stock`` any file of one that torch saved, without
a manifest.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
import sys
import time
import types
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.checkpoint.support import random_bits, raw_bytes
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from holdfast import checkpoint
from holdfast.checkpoint import verify_checkpoint
from holdfast.errors import HoldfastError

SLOW_SECONDS = 60.0
"""A single mutation that takes this long counts as a hang."""


def saved() -> dict[str, Any]:
    options = types.SimpleNamespace(lr=0.1, betas=(0.9, 0.95), scale=np.float64(2.5), names=["a", "b"])
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
        "rng": np.random.RandomState(3).get_state(legacy=False)["state"]["key"],
    }


def make(folder: Path, kind: str) -> None:
    """Save the checkpoint that is damaged."""
    if kind == "stock":
        dcp_save(saved(), storage_writer=FileSystemWriter(folder, sync_files=False), no_dist=True)
    else:
        checkpoint.save(saved(), folder, step=5)


def loaded(folder: Path) -> dict[str, Any]:
    """Load whatever the metadata says is there."""
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    checkpoint.load({}, folder, planner=planner, num_workers=1)
    return planner.original_state_dict  # torch has the planner fill a state of its own where the caller's is empty


def fingerprint(value: Any) -> Any:
    """Something equal exactly when the values are, bit for bit."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), raw_bytes(value))
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, dict):
        return {key: fingerprint(entry) for key, entry in value.items()}
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


def run(folder: Path, kind: str, first: int, count: int) -> Counter[str]:
    """Try mutations ``first`` to ``first + count``; the same number is always the same mutation."""
    shutil.rmtree(folder, ignore_errors=True)
    make(folder, kind)
    expected = loaded(folder)
    assert fingerprint(expected) == fingerprint(saved())
    files = [folder / ".metadata"] if kind == "metadata" else sorted(path for path in folder.iterdir())
    whole = {path: path.read_bytes() for path in files}
    outcomes = Counter[str]()
    for number in range(first, first + count):
        chance = random.Random(f"{kind} {number}")
        path = chance.choice(files)
        data = mutate(chance, whole[path], whole[chance.choice(files)])
        path.write_bytes(data)
        began = time.perf_counter()
        try:
            verdict = verify_checkpoint(folder, num_workers=1).verdict
        except HoldfastError:
            verdict = "unusable"
        except Exception as error:
            verdict = f"foreign {type(error).__name__}"
        try:
            state = loaded(folder)
            outcome = "equal" if fingerprint(state) == fingerprint(expected) else "different"
            if outcome == "different" and kind == "stock" and same_but_for_names(state, expected):
                outcome = "renamed"  # what nothing in torch's own format could tell
        except HoldfastError:
            outcome = "refused"
        except BaseException as error:
            outcome = f"foreign {type(error).__name__}"
        path.write_bytes(whole[path])
        agrees = (verdict == "sound") == (outcome in ("equal", "renamed", "different"))
        outcomes[f"{verdict}, {outcome}"] += 1
        if not agrees:
            outcomes["disagree"] += 1
            print(f"{kind} {number} {path.name}: verify says {verdict}, load: {outcome}", file=sys.stderr)
        if outcome == "different":
            outcomes["silent"] += 1
            print(f"{kind} {number} {path.name}: loads something else", file=sys.stderr)
        outcomes["hangs"] += time.perf_counter() - began > SLOW_SECONDS
    return outcomes


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    print(json.dumps(run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
