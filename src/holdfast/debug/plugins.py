"""Plug-ins found by entry point: a package that declares one in the group ``holdfast.debug`` is used once installed."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from holdfast.debug.base import BaseDetector, BaseIngestor, BaseSignalExtractor

__all__ = ["GROUP", "Plugin", "load_plugins"]

GROUP = "holdfast.debug"
Plugin = BaseIngestor | BaseSignalExtractor | BaseDetector


def load_plugins() -> tuple[list[Plugin], list[str]]:
    """Load every plug-in, with a note about each that does not load. An entry point names a class or a factory."""
    found: list[Plugin] = []
    notes: list[str] = []
    for entry in entry_points(group=GROUP):
        part, problem = _load(entry)
        if part is None:
            notes.append(f"the plug-in {entry.name!r} ({entry.value}) was left out: {problem}")
        else:
            found.append(part)
    return found, notes


def _load(entry: Any) -> tuple[Plugin | None, str]:
    try:
        part = entry.load()
        if not isinstance(part, Plugin):
            part = part()
    except Exception as error:  # Someone else's code: whatever it raises must not stop a diagnosis.
        return None, f"{type(error).__name__}: {error}"
    if not isinstance(part, Plugin):
        return None, f"it gives a {type(part).__name__}, neither ingestor, extractor nor detector"
    return part, ""
