"""NCCL flight-recorder dumps: what each rank's collectives were doing when a job stopped. One file per rank.

PyTorch writes them as pickles of plain containers, or as JSON. The unpickler here resolves no global names, so a pickle
that would call anything is rejected before it does.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.types import Signal

__all__ = ["FlightRecorderFormat"]

_STATES = {"scheduled": 0.0, "started": 1.0, "completed": 2.0}
_RANK = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle|bin))?$")
_MAX_ENTRIES = 200_000


class _PlainUnpickler(pickle.Unpickler):
    """Loads containers, numbers and strings; any reference to a class or function is an error."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"refers to {module}.{name}")

    def persistent_load(self, identifier: Any) -> NoReturn:
        raise pickle.UnpicklingError("refers to an external object")


class FlightRecorderFormat(LogFormat):
    """Dumps of torch's NCCL flight recorder."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "flight-recorder"

    def sniff(self, file: LogFile) -> float:
        """Recognise a pickle or a JSON object with the recorder's keys."""
        head = file.head
        signs = sum(
            sign in head for sign in (b"pg_config", b"nccl_version", b"collective_seq_id", b"entries", b"pg_status")
        )
        if signs < 2:
            return 0.0
        return 0.99 if head[:1] == b"\x80" or head.lstrip()[:1] == b"{" else 0.0

    def read(self, file: LogFile) -> RunLog:
        """Read one rank's dump."""
        data = self._load(file)
        if not isinstance(data, dict) or not isinstance(data.get("entries", []), list):
            raise file.unreadable("is not a flight-recorder dump")
        rank = _rank(file, data)
        groups = _groups(data)
        entries = [entry for entry in data.get("entries", [])[-_MAX_ENTRIES:] if isinstance(entry, dict)]
        events: list[Mapping[str, Any]] = [_entry(entry, rank, groups) for entry in entries]
        events += _statuses(data, entries, rank, groups)
        ranks = {member for group in groups.values() for member in group[1]}
        config: dict[str, Any] = {"world_size": max(ranks) + 1} if ranks else {}
        notes = [] if entries else [f"rank {rank} has no unfinished collectives on record"]
        return RunLog(str(file.path), self.name, tuple(_signals(events, rank)), config, tuple(events), tuple(notes))

    def _load(self, file: LogFile) -> Any:
        data = file.read_bytes()
        try:
            if data[:1] == b"\x80":
                return _PlainUnpickler(io.BytesIO(data)).load()
            return json.loads(data.decode("utf-8", errors="replace"))
        except (pickle.UnpicklingError, RecursionError) as error:
            raise file.unreadable(
                f"is a pickle that {error}",
                hint="a flight-recorder dump has only plain containers; nothing was executed",
            ) from error
        except Exception as error:  # A damaged stream can make the unpickler raise anything.
            raise file.unreadable(f"is a damaged dump: {error}") from error


def _rank(file: LogFile, data: Mapping[str, Any]) -> int:
    if isinstance(data.get("rank"), int):
        return int(data["rank"])
    match = _RANK.search(file.name)
    return int(match.group(1)) if match else 0


def _groups(data: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the description and ranks of each process group by name."""
    groups: dict[str, tuple[str, tuple[int, ...]]] = {}
    config = data.get("pg_config")
    for name, entry in config.items() if isinstance(config, dict) else ():
        if isinstance(entry, (list, tuple)):
            entry = {"ranks": entry}  # Before version 2 a group was only its ranks.
        if not isinstance(entry, dict):
            continue
        ranks = entry.get("ranks", ())
        if isinstance(ranks, str):
            ranks = [int(number) for number in re.findall(r"\d+", ranks)[:1_000_000]]
        numbers = (
            tuple(number for number in ranks if isinstance(number, int)) if isinstance(ranks, (list, tuple)) else ()
        )
        groups[str(entry.get("name", name))] = (str(entry.get("desc", "")), numbers)
    return groups


def _entry(entry: Mapping[str, Any], rank: int, groups: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, Any]:
    group = entry.get("process_group")
    name, description = (
        (str(group[0]), str(group[1]))
        if isinstance(group, (list, tuple)) and len(group) == 2
        else (str(entry.get("pg_id")), "")
    )
    known = groups.get(name, (description, ()))
    point_to_point = bool(entry.get("is_p2p"))
    sequence = entry.get(
        "p2p_seq_id" if point_to_point else "collective_seq_id", entry.get("seq_id", entry.get("op_id", 0))
    )
    return {
        "type": "collective",
        "replica": rank,
        "group": name,
        "group_description": description or known[0],
        "group_ranks": known[1],
        "sequence": sequence if isinstance(sequence, int) else 0,
        "operation": str(entry.get("profiling_name", "")).removeprefix("nccl:"),
        "state": str(entry.get("state", "scheduled")),
        "point_to_point": point_to_point,
        "sizes": entry.get("input_sizes"),
        "dtypes": entry.get("input_dtypes"),
        "time_created_ns": entry.get("time_created_ns"),
        "timeout_ms": entry.get("timeout_ms"),
    }


def _statuses(
    data: Mapping[str, Any],
    entries: list[dict[str, Any]],
    rank: int,
    groups: Mapping[str, tuple[str, tuple[int, ...]]],
) -> list[Mapping[str, Any]]:
    """Return progress in each group, including ranks without entries.

    ``pg_status`` is keyed by the order in which this rank created its groups, ``pg_config`` by name. Entries link the
    two; without entries, the names, which are numbered in order of creation, have the same order.
    """
    status = data.get("pg_status")
    if not isinstance(status, dict):
        return []
    names = {
        str(entry["pg_id"]): str(entry["process_group"][0])
        for entry in entries
        if "pg_id" in entry and isinstance(entry.get("process_group"), (list, tuple)) and entry["process_group"]
    }
    if len(status) == len(groups) and all(map(str.isdigit, [*map(str, status), *groups])):
        for number, name in zip(sorted(status, key=int), sorted(groups, key=int), strict=True):
            names.setdefault(str(number), name)
    events: list[Mapping[str, Any]] = []
    for number, progress in status.items():
        name = names.get(str(number), str(number))
        if not isinstance(progress, dict):
            continue
        description, ranks = groups.get(name, ("", ()))
        events.append(
            {
                "type": "collective_status",
                "replica": rank,
                "group": name,
                "group_description": description,
                "group_ranks": ranks,
                "last_enqueued": progress.get("last_enqueued_collective"),
                "last_started": progress.get("last_started_collective"),
                "last_completed": progress.get("last_completed_collective"),
            }
        )
    return events


def _signals(events: list[Mapping[str, Any]], rank: int) -> list[Signal]:
    series: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        if event["type"] == "collective":
            point = (float(event["sequence"]), _STATES.get(event["state"], 0.0))
            series.setdefault(f"collective/{event['group']}", []).append(point)
        elif isinstance(event["last_completed"], int) and event["last_completed"] >= 0:
            points = series.setdefault(f"collective/{event['group']}", [])
            points.insert(0, (float(event["last_completed"]), 2.0))
    signals = []
    for name, points in series.items():
        table = np.array(sorted(points), dtype=np.float64)
        signals.append(Signal(name, table[:, 0], table[:, 1], replica=rank, metadata={"kind": "collective"}))
    return signals
