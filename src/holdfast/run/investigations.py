"""Results of blame and proof, stored beside the run's log for the page: one JSON file per kind and step."""

from __future__ import annotations

import json
import os
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.foreign import parse_json, read_plain
from holdfast.run.layout import RunFolder
from holdfast.versioned import Count, problem_with

__all__ = ["Investigation", "keep_investigation", "read_investigations"]

_NAME = re.compile(r"(blame|proof)-(\d{8,})\.json")


@dataclass(frozen=True, slots=True)
class Investigation:
    """One question about a run, and its answer.

    Attributes:
        kind: ``blame`` or ``proof``.
        step: the step in question.
        result: the result of ``Blame.to_json`` or ``Proof.to_json``.
    """

    kind: str
    step: int
    result: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Suspect:
    source: str
    index: Count
    score: float | None = None
    preview: dict[str, Any] | None = None
    unknown: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The fields of an answer that the page reads."""

    suspects: list[_Suspect] = field(default_factory=list)
    ranked: list[_Suspect] = field(default_factory=list)
    verdict: str = ""
    reason: str = ""
    cure: str | None = None
    window: tuple[Count, Count] | None = None
    steps: list[Count] = field(default_factory=list)
    as_it_was: list[float] = field(default_factory=list)
    without_suspects: list[float] = field(default_factory=list)
    without_random: list[list[float]] = field(default_factory=list)
    unknown: dict[str, Any] = field(default_factory=dict)


def keep_investigation(folder: Path, kind: str, step: int, result: dict[str, Any]) -> None:
    """Write an answer into the run's folder, replacing an earlier one to the same question; all ranks may call it.

    If it cannot be written, this only warns.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_rank():
        return
    place = RunFolder(folder).investigations
    path = place / f"{kind}-{step:08d}.json"
    temporary = place / f".{path.name}.tmp"
    try:
        place.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(result), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        warnings.warn(f"the answer could not be stored for the run's page: {error}", RuntimeWarning, stacklevel=2)


def read_investigations(folder: Path) -> list[Investigation]:
    """Return every answer in a run's folder, by step; files that cannot be read are left out."""
    found = []
    for path in sorted(RunFolder(folder).investigations.glob("*.json")):
        name = _NAME.fullmatch(path.name)
        try:
            result = parse_json(read_plain(path, within=folder)) if name else None
        except (OSError, ValueError):
            continue
        if name is not None and isinstance(result, dict) and problem_with(_Answer, result) is None:
            found.append(Investigation(name[1], int(name[2]), result))
    return sorted(found, key=lambda each: (each.step, each.kind))
