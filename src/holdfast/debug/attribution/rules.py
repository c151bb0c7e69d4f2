"""The causes, read from ``rules.json``: what each looks like, what contradicts it and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from holdfast.debug.attribution.observations import OBSERVATIONS
from holdfast.debug.types import Failure
from holdfast.errors import ConfigError

__all__ = ["CauseRule", "load_rules"]


@dataclass(frozen=True, slots=True)
class CauseRule:
    """One cause.

    Args:
        cause: the name used in reports.
        title: the human-readable name.
        priors: log-odds per failure; a cause cannot explain a failure it has no prior for.
        supports: log-odds per observation that supports it.
        opposes: log-odds per observation that contradicts it.
        needs: observations of which at least one must be true; if empty, none is needed.
        excluded_by: observations that rule the cause out: wrong time, wrong place.
        remediation: what to do.
        command: the command to run next, with ``{path}``, ``{step}``, ``{before}`` and ``{last}`` filled in.
    """

    cause: str
    title: str
    priors: Mapping[str, float]
    supports: Mapping[str, float]
    opposes: Mapping[str, float]
    needs: tuple[str, ...]
    excluded_by: tuple[str, ...]
    remediation: str
    command: str = ""

    def score(self, failure: str, seen: Mapping[str, float], *, is_so: float) -> float | None:
        """Return the log-odds of the cause for a failure, or None if it cannot be the cause.

        Args:
            failure: its name.
            seen: what was observed.
            is_so: the value from which an observation counts as true.
        """
        prior = self.priors.get(failure)
        if prior is None or not self.is_possible(seen, is_so=is_so):
            return None
        weights = (*self.supports.items(), *self.opposes.items())
        return prior + sum(weight * seen.get(name, 0.0) for name, weight in weights)

    def is_possible(self, seen: Mapping[str, float], *, is_so: float) -> bool:
        """Return whether the observations leave this cause possible."""
        if any(seen.get(name, 0.0) >= is_so for name in self.excluded_by):
            return False
        return not self.needs or any(seen.get(name, 0.0) >= is_so for name in self.needs)


def load_rules(path: Path | None = None) -> tuple[CauseRule, ...]:
    """Read the rules that ship with holdfast, or those in a file of the same form.

    Raises:
        ConfigError: a rule names a failure or an observation that does not exist.
    """
    text = (
        path.read_text(encoding="utf-8")
        if path
        else resources.files(__package__).joinpath("rules.json").read_text("utf-8")
    )
    try:
        entries = json.loads(text)["causes"]
        return tuple(_rule(entry) for entry in entries)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the rules cannot be read: {error}", file=str(path)) from error


def _rule(entry: Mapping[str, Any]) -> CauseRule:
    for failure in entry["priors"]:
        Failure(failure)  # Names are open, but must be well-formed.
    needs, excluded_by = tuple(entry.get("needs", ())), tuple(entry.get("excluded_by", ()))
    for name in (*entry["for"], *entry["against"], *needs, *excluded_by):
        if name not in OBSERVATIONS:
            raise ConfigError("a rule names an observation that does not exist", cause=entry["cause"], observation=name)
    return CauseRule(
        cause=entry["cause"],
        title=entry["title"],
        priors=dict(entry["priors"]),
        supports=dict(entry["for"]),
        opposes=dict(entry["against"]),
        needs=needs,
        excluded_by=excluded_by,
        remediation=entry["remediation"],
        command=entry.get("command", ""),
    )
