"""Traces of parameter hashes per rank: one JSON record per parameter and step, as TrainCheck writes them.

Only the equality of hashes matters, so each is mapped to a number that is equal exactly if the hash is.
"""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import Any

import numpy as np

from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.rows import number_of
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.types import Signal

__all__ = ["ParameterHashFormat"]

_HASHES = ("param_hash", "parameter_hash", "hash", "checksum", "data_hash", "digest")
_NAMES = ("var_name", "param", "parameter", "param_name", "layer", "name")
_RANKS = ("rank", "replica", "global_rank", "_DATA_PARALLEL_RANK", "dp_rank", "RANK")
_SHARDED = ("tensor_model_parallel", "sharded", "is_sharded", "partitioned")
_FILE_RANK = re.compile(r"(?:rank|replica|worker|gpu)[_\-.]?(\d+)", re.IGNORECASE)


class ParameterHashFormat(LogFormat):
    """JSON lines of parameter hashes."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "parameter-hashes"

    def sniff(self, file: LogFile) -> float:
        """Recognise JSON records with the name and a hash of a parameter."""
        if not file.is_text or file.head.lstrip()[:1] != b"{":
            return 0.0
        records = [record for line in file.sample_lines[:20] if (record := _record(line)) is not None]
        parsed = [_point(record) for record in records]
        hits = sum(point is not None for point in parsed)
        return 0.97 if hits and hits * 3 >= len(records) else 0.0

    def read(self, file: LogFile) -> RunLog:
        """Read one rank's trace."""
        match = _FILE_RANK.search(file.name)
        default = int(match.group(1)) if match else None
        series: dict[tuple[str, int | None], dict[float, float]] = {}
        sharded: dict[tuple[str, int | None], bool] = {}
        processes: set[Any] = set()
        for line in file.lines(longest=file.limits.structured_line_characters):
            record = _record(line)
            point = None if record is None else _point(record)
            if record is None or point is None:
                continue
            parameter, step, number, rank, shard = point
            processes.add(record.get("process_id"))
            key = (parameter, default if rank is None else rank)
            if len(series) >= file.limits.signals and key not in series:
                continue
            # Of several records in one step the last is the parameter after the step.
            series.setdefault(key, {})[step] = number
            sharded[key] = sharded.get(key, False) or shard
        if not series:
            raise file.unreadable("contains no parameter hashes")
        signals = []
        for (parameter, rank), points in series.items():
            steps = np.array(sorted(points), dtype=np.float64)
            metadata = {"kind": "param_hash", "sharded": sharded[(parameter, rank)]}
            values = np.array([points[step] for step in steps.tolist()])
            signals.append(Signal("param_hash", steps, values, layer=parameter, replica=rank, metadata=metadata))
        config = {"process_id": next(iter(processes))} if len(processes) == 1 else {}
        return RunLog(str(file.path), self.name, tuple(signals), config)


def _record(line: str) -> dict[str, Any] | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _point(record: dict[str, Any]) -> tuple[str, float, float, int | None, bool] | None:
    raw_attributes, raw_meta = record.get("attributes"), record.get("meta_vars")
    attributes: dict[str, Any] = raw_attributes if isinstance(raw_attributes, dict) else {}
    meta: dict[str, Any] = raw_meta if isinstance(raw_meta, dict) else {}
    parameter = next((record[name] for name in _NAMES if isinstance(record.get(name), str)), None)
    value: Any = None
    if "data" in attributes and "var_name" in record:
        if "Parameter" not in str(record.get("var_type", "Parameter")):
            return None
        value = attributes["data"]
    else:
        value = next((record[name] for name in _HASHES if record.get(name) is not None), None)
    step = number_of(meta.get("step", record.get("step", record.get("global_step"))))
    if parameter is None or value is None or step is None or isinstance(value, (float, dict, list)):
        return None
    rank = next(
        (number for place in (record, meta) for name in _RANKS if (number := _whole(place.get(name))) is not None), None
    )
    shard = any(
        place.get(name) is True or place.get(name) == "True"
        for place in (record, meta, attributes)
        for name in _SHARDED
    )
    return parameter, step, _number(value), rank, shard


def _whole(value: Any) -> int | None:
    number = number_of(value)
    return int(number) if number is not None and number == number and abs(number) < 1e9 else None


def _number(value: Any) -> float:
    """Return a number below 2**52 that represents the hash, exact in float64."""
    return float(int.from_bytes(blake2b(repr(value).encode(), digest_size=8).digest(), "little") >> 12)
