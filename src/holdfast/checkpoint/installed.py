"""Our reader for code that creates torch's: Accelerate, Lightning, or a plain ``dcp.load(checkpoint_id=…)``.

Such code looks up ``FileSystemReader`` in torch's modules and accepts no other. Inside the block that name refers to
our reader in every module that had torch's; after it all modules have torch's again, even those first imported inside.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader as TorchReader  # the name itself is replaced

from holdfast.checkpoint.reader import ParallelFileSystemReader
from holdfast.errors import ConfigError

__all__ = ["installed"]

_NAME = "FileSystemReader"
# They subclass FileSystemReader: imported first, so that no class of torch's ever derives from ours.
_DERIVING = ("torch.distributed.checkpoint._fsspec_filesystem", "torch.distributed.checkpoint.hf_storage")

_blocks: list[type[ParallelFileSystemReader]] = []  # the open blocks: threads may leave theirs in any order
_lock = threading.Lock()


class _Standing(type(TorchReader)):  # type: ignore[misc]  # a class made by a call: torch says only that it is one
    """Makes ``isinstance(reader, FileSystemReader)`` give the same answer inside a block as outside."""

    def __instancecheck__(cls, instance: object) -> bool:
        if cls.__bases__ == (ParallelFileSystemReader,):
            return isinstance(instance, TorchReader)
        return bool(super().__instancecheck__(instance))  # of a class that was derived from it inside the block


@contextmanager
def installed(**options: Any) -> Iterator[type[ParallelFileSystemReader]]:
    """Make everything in this process that loads DCP checkpoints use our reader, for the duration of the block.

    Args:
        **options: those of ``holdfast.checkpoint.ParallelFileSystemReader``, for every reader that is created.

    Yields:
        The class that stands in for torch's ``FileSystemReader``.
    """
    known = set(inspect.signature(ParallelFileSystemReader).parameters) - {"path"}
    if unknown := sorted(options.keys() - known):
        raise ConfigError(f"unknown reader options: {', '.join(unknown)}", known=sorted(known))
    ParallelFileSystemReader(os.curdir, **options)  # raises here rather than at the first load
    for name in _DERIVING:
        with suppress(ImportError):  # of optional dependencies
            importlib.import_module(name)

    class InstalledReader(ParallelFileSystemReader, metaclass=_Standing):
        """The reader with the options of the block."""

        def __init__(self, path: Any, _extension_registry: Any = None) -> None:
            super().__init__(path, _extension_registry, **options)

    with _lock:
        _blocks.append(InstalledReader)
        _install()
    try:
        yield InstalledReader
    finally:
        with _lock:
            _blocks.remove(InstalledReader)
            _install()


def _install() -> None:
    """Bind the name to the reader of the newest open block, or to torch's when no block is open."""
    reader = _blocks[-1] if _blocks else TorchReader
    for module in _modules():
        if _is_reader(vars(module)[_NAME]):
            setattr(module, _NAME, reader)


def _modules() -> list[ModuleType]:
    """Return the modules that define the name."""
    return [module for module in list(sys.modules.values()) if _NAME in getattr(module, "__dict__", {})]


def _is_reader(value: Any) -> bool:
    return value is TorchReader or (isinstance(value, type) and value.__qualname__.endswith("InstalledReader"))
