"""The demo's data: the Python standard library's own sources as two files of bytes, cut into sequences."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from holdfast.metrics import StandardMetricTransform
from holdfast.sources import TokenFileSource
from holdfast.stream import InterleavedDataset, StreamDataset

__all__ = ["LENGTH", "build_mixture", "write_corpus"]

LENGTH = 96
WEIGHTS = {"modules": 0.7, "packages": 0.3}
MAX_BYTES = 3 << 20


def write_corpus(folder: Path) -> None:
    """Write ``modules.bin`` (top-level modules) and ``packages.bin`` (modules inside packages)."""
    library = Path(sysconfig.get_paths()["stdlib"])
    groups = {
        "modules": sorted(library.glob("*.py")),
        "packages": sorted(
            p for p in library.glob("*/*.py") if p.parent.name not in ("test", "site-packages", "idlelib")
        ),
    }
    for name, paths in groups.items():
        text = bytearray()
        for path in paths:
            if len(text) < MAX_BYTES:
                text += path.read_bytes()
        (folder / f"{name}.bin").write_bytes(bytes(text[:MAX_BYTES]))


def build_mixture(folder: Path) -> InterleavedDataset:
    """Return the two files mixed 70 : 30."""
    children = [
        StreamDataset(
            TokenFileSource(folder / f"{name}.bin", LENGTH, dtype="uint8", targets=True),
            name=name,
            seed=11,
            metric_transform=StandardMetricTransform(),
        )
        for name in WEIGHTS
    ]
    return InterleavedDataset(children, WEIGHTS, seed=11, name="python")
