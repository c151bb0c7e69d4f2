"""The reader for code that makes its own: Accelerate, Lightning, or a plain ``dcp.load(checkpoint_id=…)``.

They look ``FileSystemReader`` up in torch's modules and take no other. Inside the block that name is ours, everywhere
it was torch's; behind it every module has its own again, those that were first imported inside too.
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
# They derive classes from the name: imported first, so that no class of torch's ever derives from ours.
_DERIVING = ("torch.distributed.checkpoint._fsspec_filesystem", "torch.distributed.checkpoint.hf_storage")

_blocks: list[type[ParallelFileSystemReader]] = []  # the open ones: threads may leave theirs in any order
_lock = threading.Lock()


class _Standing(type(TorchReader)):  # type: ignore[misc]  # a class made by a call: torch says only that it is one
    """Lets ``isinstance(reader, FileSystemReader)`` say inside a block what it says outside."""

    def __instancecheck__(cls, instance: object) -> bool:
        if cls.__bases__ == (ParallelFileSystemReader,):
            return isinstance(instance, TorchReader)
        return bool(super().__instancecheck__(instance))  # of a class that was derived from it inside the block


@contextmanager
def installed(**options: Any) -> Iterator[type[ParallelFileSystemReader]]:
    """Let everything in this process that loads DCP checkpoints use our reader, for the duration of the block.

    Args:
        **options: those of :class:`~holdfast.checkpoint.ParallelFileSystemReader`, for every reader that is made.

    Yields:
        The class that stands in for torch's ``FileSystemReader``.
    """
    known = set(inspect.signature(ParallelFileSystemReader).parameters) - {"path"}
    if unknown := sorted(options.keys() - known):
        raise ConfigError(f"unknown options of the reader: {', '.join(unknown)}", known=sorted(known))
    ParallelFileSystemReader(os.curdir, **options)  # refuses here what it would refuse at the first load
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
    """Let the newest block that is open have the name; torch has it again where there is none."""
    reader = _blocks[-1] if _blocks else TorchReader
    for module in _modules():
        if _is_reader(vars(module)[_NAME]):
            setattr(module, _NAME, reader)


def _modules() -> list[ModuleType]:
    """Return the modules that have the name."""
    return [module for module in list(sys.modules.values()) if _NAME in getattr(module, "__dict__", {})]


def _is_reader(value: Any) -> bool:
    return value is TorchReader or (isinstance(value, type) and value.__qualname__.endswith("InstalledReader"))
