"""Checks for sources, stores and pipelines that users write themselves: run them in your own tests."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.pipelines import CheckpointRun as CheckpointRun
    from holdfast.testing.pipelines import assert_exact_resume as assert_exact_resume
    from holdfast.testing.pipelines import run_training_loop_with_checkpoint as run_training_loop_with_checkpoint
    from holdfast.testing.source_contract import check_source as check_source
    from holdfast.testing.store_contract import check_store as check_store

__all__ = ["CheckpointRun", "assert_exact_resume", "check_source", "check_store", "run_training_loop_with_checkpoint"]

_HOMES = {"check_source": "source_contract", "check_store": "store_contract"}


def __getattr__(name: str) -> Any:
    # Loaded on first use: checking a source needs no torch.
    if name not in __all__:
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.testing.{_HOMES.get(name, 'pipelines')}"), name)
