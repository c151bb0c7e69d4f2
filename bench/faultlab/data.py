"""The lab's data: scikit-learn's bundled tables and images, and text of the Python standard library.

The tuning half and the reporting half share none of it: tables and one part of the text against images and the other.
"""

from __future__ import annotations

import pydoc_data
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

__all__ = ["VOCABULARY", "Task", "load_task"]

VOCABULARY = 96
SEQUENCE = 24

# Three kinds of text per half, so that unshuffled order means something: prose, code, tables.
_TEXT_PARTS = {
    "text-a": (
        ("topics", 0),
        ("code", ("argparse.py", "ast.py", "calendar.py", "difflib.py")),
        ("tables", ("cp1250.py", "cp437.py")),
    ),
    "text-b": (
        ("topics", 1),
        ("code", ("pathlib.py", "tarfile.py", "typing.py", "zipfile.py")),
        ("tables", ("cp1251.py", "cp850.py")),
    ),
}


@dataclass(frozen=True, slots=True)
class Task:
    """Training and evaluation tensors; ``groups`` orders the training samples by class or kind of text."""

    inputs: torch.Tensor
    targets: torch.Tensor
    eval_inputs: torch.Tensor
    eval_targets: torch.Tensor
    groups: torch.Tensor
    classes: int
    is_text: bool


@lru_cache(maxsize=8)
def load_task(name: str) -> Task:
    """Load ``blobs``, ``cancer``, ``diabetes`` (regression: no classes), ``digits``, ``text-a`` or ``text-b``."""
    return _text_task(name) if name.startswith("text") else _table_task(name)


def _table_task(name: str) -> Task:
    from sklearn import datasets

    loader = {"cancer": datasets.load_breast_cancer, "diabetes": datasets.load_diabetes, "digits": datasets.load_digits}
    if name == "blobs":
        features, targets = datasets.make_classification(
            1500, 24, n_informative=16, n_classes=8, class_sep=1.6, random_state=3
        )
    else:
        bunch = loader[name]()
        features, targets = np.asarray(bunch.data, dtype=np.float64), np.asarray(bunch.target)
    scale = features.std() if name == "digits" else features.std(axis=0)
    center = features.mean() if name == "digits" else features.mean(axis=0)
    features = (features - center) / scale
    classes = 0 if name == "diabetes" else int(targets.max()) + 1
    if classes == 0:
        targets = (targets - targets.mean()) / targets.std()
    shuffled = np.random.default_rng(0).permutation(len(features))
    features, targets = features[shuffled], targets[shuffled]
    cut = int(len(features) * 0.75)
    inputs = torch.tensor(features, dtype=torch.float32)
    if name == "digits":
        inputs = inputs.reshape(-1, 1, 8, 8)
    labels = torch.tensor(targets, dtype=torch.float32 if classes == 0 else torch.int64)
    return Task(inputs[:cut], labels[:cut], inputs[cut:], labels[cut:], labels[:cut].clone(), classes, False)


def _read_part(kind: str, what: object) -> str:
    library = Path(sysconfig.get_paths()["stdlib"])
    if kind == "topics":
        text = (Path(pydoc_data.__file__).parent / "topics.py").read_text(encoding="utf-8", errors="ignore")
        half = len(text) // 2
        return text[:half] if what == 0 else text[half:]
    folder = library / "encodings" if kind == "tables" else library
    assert isinstance(what, tuple)
    return "".join((folder / name).read_text(encoding="utf-8", errors="ignore") for name in what)


def _text_task(name: str) -> Task:
    pieces, groups = [], []
    for group, (kind, what) in enumerate(_TEXT_PARTS[name]):
        codes = np.frombuffer(_read_part(kind, what).encode("ascii", "ignore"), dtype=np.uint8).astype(np.int64)
        codes = np.clip(codes - 32, 0, VOCABULARY - 1)
        rows = codes[: len(codes) // (SEQUENCE + 1) * (SEQUENCE + 1)].reshape(-1, SEQUENCE + 1)[:1600]
        pieces.append(rows)
        groups.append(np.full(len(rows), group))
    rows, group_of = np.concatenate(pieces), np.concatenate(groups)
    shuffled = np.random.default_rng(1).permutation(len(rows))
    rows, group_of = rows[shuffled], group_of[shuffled]
    cut = int(len(rows) * 0.85)
    tensor = torch.tensor(rows)
    return Task(
        tensor[:cut, :-1],
        tensor[:cut, 1:],
        tensor[cut:, :-1],
        tensor[cut:, 1:],
        torch.tensor(group_of[:cut]),
        VOCABULARY,
        True,
    )
