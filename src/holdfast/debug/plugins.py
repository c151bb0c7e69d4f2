"""Plug-ins discovered by entry point: installing a package with one in the group ``holdfast.debug`` enables it."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from holdfast.debug.base import BaseDetector, BaseIngestor, BaseSignalExtractor

__all__ = ["GROUP", "Plugin", "load_plugins"]

GROUP = "holdfast.debug"
Plugin = BaseIngestor | BaseSignalExtractor | BaseDetector


def load_plugins() -> tuple[list[Plugin], list[str]]:
    """Load every plug-in, with a note about each that fails to load. An entry point names a class or a factory."""
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
    except Exception as error:  # Third-party code: nothing it raises may stop a diagnosis.
        return None, f"{type(error).__name__}: {error}"
    if not isinstance(part, Plugin):
        return None, f"it is a {type(part).__name__}, not an ingestor, extractor or detector"
    return part, ""
