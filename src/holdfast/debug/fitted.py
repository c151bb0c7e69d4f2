"""The output of ``holdfast calibrate`` as a file: thresholds, calibration tables, and a digest of both.

The digest makes sure that numbers that decide a report's confidence do not change unnoticed. A file made by another
tool, an edited file and a file with a newer schema are rejected.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.debug.attribution.calibration import Calibration
from holdfast.errors import ConfigError

__all__ = ["Fitted", "load_calibration", "load_thresholds"]

SCHEMA = 1
_MARK = "calibration"
_MAX_BYTES = 16 << 20

Thresholds = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Thresholds and tables fitted together on one set of labelled runs and verdicts.

    Args:
        thresholds: detector → option → value; only those that differ from the defaults.
        calibration: how often raw confidences were right.
        about: a human-readable description of what it was fitted on.
    """

    thresholds: Thresholds = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)
    about: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the content of the file, with its digest."""
        body = {
            "holdfast": _MARK,
            "schema": SCHEMA,
            "thresholds": self.thresholds,
            "calibration": self.calibration.as_json(),
            "about": dict(self.about),
        }
        return {**body, "digest": _digest(body)}

    @classmethod
    def from_json(cls, body: Any, *, file: str = "") -> Fitted:
        """Check and read the output of ``as_json``.

        Raises:
            ConfigError: it was made by another tool, edited, or has a newer schema.
        """
        if not isinstance(body, dict) or body.get("holdfast") != _MARK:
            raise _refused("was not made by `holdfast calibrate`", file)
        schema = body.get("schema")
        if not isinstance(schema, int) or schema > SCHEMA:
            raise ConfigError(
                f"the calibration has schema {schema}, newer than {SCHEMA}",
                hint="upgrade holdfast, or calibrate again with this version",
                file=file,
            )
        if body.get("digest") != _digest({name: value for name, value in body.items() if name != "digest"}):
            raise _refused("was changed after it was made: its digest does not match", file)
        try:
            calibration = Calibration.from_json(body["calibration"])
        except (KeyError, TypeError, ValueError) as error:
            raise _refused(f"contains no calibration tables: {error}", file) from error
        thresholds = _checked(body.get("thresholds", {}), file)
        return cls(thresholds=thresholds, calibration=calibration, about=body.get("about") or {})


def load_calibration(path: Path) -> Calibration:
    """Return the tables of a file made by ``holdfast calibrate``.

    Raises:
        ConfigError: it cannot be read, or is invalid.
    """
    return Fitted.from_json(_read(path), file=str(path)).calibration


def load_thresholds(path: Path) -> Thresholds:
    """Return the thresholds in a file made by ``holdfast calibrate``, or in a hand-written one.

    The result maps detector → option → value.

    Raises:
        ConfigError: it cannot be read, or is invalid.
    """
    body = _read(path)
    if isinstance(body, dict) and "holdfast" in body:
        return Fitted.from_json(body, file=str(path)).thresholds
    return _checked(body, str(path))


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise _refused("is too large", str(path))
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"the file cannot be read: {error}",
            hint="make one with `holdfast calibrate LABELS --output FILE`",
            file=str(path),
        ) from error


def _checked(thresholds: Any, file: str) -> Thresholds:
    whole = isinstance(thresholds, dict) and all(isinstance(options, dict) for options in thresholds.values())
    if not whole or not all(_is_number(value) for options in thresholds.values() for value in options.values()):
        raise ConfigError("not a set of thresholds", file=file, hint='write {"spike": {"minimum_noises": 12}}')
    return {str(name): dict(options) for name, options in thresholds.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _refused(why: str, file: str) -> ConfigError:
    return ConfigError(
        f"the calibration {why}", hint="make one with `holdfast calibrate LABELS --output FILE`", file=file
    )
