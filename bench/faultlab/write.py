"""Writes a record as a log file, in one of the formats people have, thinned to the run's logging interval."""

from __future__ import annotations

import csv
import json
import math
import pickle
from pathlib import Path
from typing import Any

from bench.faultlab.plan import RunSpec
from bench.faultlab.train import Record

__all__ = ["write_log"]

_HIDDEN = frozenset(("data_time",))


def write_log(spec: RunSpec, record: Record, folder: Path) -> Path:
    """Write the log; returns the file (or folder, for per-rank logs) a user would point the debugger at."""
    if any(event["type"].startswith("collective") for event in record.events):
        return _write_flight_recorder(record, folder)
    if any(series.replica is not None for series in record.series.values()):
        return _write_ranks(record, folder)
    rows = _rows(spec, record)
    writer = {
        "jsonl": _write_jsonl,
        "csv": _write_csv,
        "columns": _write_columns,
        "huggingface": _write_huggingface,
        "lightning": _write_lightning,
        "megatron": _write_megatron,
    }[spec.log_format]
    return writer(spec, rows, folder)


def _rows(spec: RunSpec, record: Record) -> list[dict[str, float]]:
    """One row a logged step: losses and times averaged over the interval, everything else as it was."""
    rows: dict[int, dict[str, float]] = {}
    for name, series in record.series.items():
        sparse = series.kind in ("eval_loss", "metric", "distribution")
        pending: list[float] = []
        for step, value in zip(series.steps, series.values, strict=True):
            pending.append(value)
            if sparse or (int(step) + 1) % spec.log_interval == 0:
                averaged = series.kind in ("loss", "train_metric", "step_time", "data_time")
                rows.setdefault(int(step), {})[name] = math.fsum(pending) / len(pending) if averaged else value
                pending = []
    return [{"step": step, **rows[step]} for step in sorted(rows)]


def _write_jsonl(spec: RunSpec, rows: list[dict[str, float]], folder: Path) -> Path:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _names(rows: list[dict[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _write_csv(spec: RunSpec, rows: list[dict[str, float]], folder: Path) -> Path:
    path = folder / "metrics.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, _names(rows), restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def _write_columns(spec: RunSpec, rows: list[dict[str, float]], folder: Path) -> Path:
    """A list of dicts in one JSON file, as notebooks leave it."""
    path = folder / "history.json"
    path.write_text(json.dumps(rows))
    return path


def _write_huggingface(spec: RunSpec, rows: list[dict[str, float]], folder: Path) -> Path:
    path = folder / "trainer_state.json"
    history: list[dict[str, Any]] = []
    for row in rows:
        renamed = {"lr": "learning_rate"}
        training = {renamed.get(k, k): v for k, v in row.items() if not k.startswith(("eval_", "serve_", "psi"))}
        evaluation = {k: v for k, v in row.items() if k.startswith(("eval_", "serve_", "psi"))}
        epoch = row["step"] / spec.steps
        if len(training) > 1:
            history.append({"epoch": epoch, **training})
        if evaluation:
            history.append({"epoch": epoch, "step": row["step"], **evaluation})
    path.write_text(json.dumps({"global_step": spec.steps, "max_steps": spec.steps, "log_history": history}))
    return path


def _write_lightning(spec: RunSpec, rows: list[dict[str, float]], folder: Path) -> Path:
    sparse: list[dict[str, float]] = []
    for row in rows:
        training = {
            f"train_{k}" if k in ("loss", "accuracy") else k: v
            for k, v in row.items()
            if not k.startswith(("eval_", "lr"))
        }
        evaluation = {k.replace("eval_", "val_"): v for k, v in row.items() if k.startswith("eval_") or k == "step"}
        if "lr" in row:
            sparse.append({"step": row["step"], "lr-AdamW": row["lr"]})
        sparse.append(training)
        if len(evaluation) > 1:
            sparse.append(evaluation)
    path = folder / "metrics.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, _names(sparse), restval="")
        writer.writeheader()
        writer.writerows(sparse)
    return path


def _write_megatron(spec: RunSpec, rows: list[dict[str, float]], folder: Path) -> Path:
    lines = []
    for row in rows:
        fields = [
            f"iteration {int(row['step']) + 1:8d}/{spec.steps:8d}",
            f"consumed samples: {int((row['step'] + 1) * spec.batch):12d}",
        ]
        if "step_time" in row:
            fields.append(f"elapsed time per iteration (ms): {row['step_time'] * 1000:.1f}")
        if "lr" in row:
            fields.append(f"learning rate: {row['lr']:.3E}")
        if math.isfinite(row.get("loss", math.nan)):  # Megatron prints no loss for a NaN iteration
            fields.append(f"lm loss: {row['loss']:.6E}")
        if "loss_scale" in row:
            fields.append(f"loss scale: {row['loss_scale']:.1f}")
        if "grad_norm" in row:
            fields.append(f"grad norm: {row['grad_norm']:.3f}")
        if "loss" in row:
            nan = int(not math.isfinite(row["loss"]))
            fields.append(
                f"number of skipped iterations: {int(row.get('skipped', 0)):3d} | number of nan iterations: {nan:3d}"
            )
            lines.append(" " + " | ".join(fields) + " |")
        if "eval_loss" in row:
            lines.append(
                f" validation loss at iteration {int(row['step']) + 1} | lm loss value: {row['eval_loss']:.6E} | "
                f"lm loss PPL: {math.exp(min(row['eval_loss'], 20)):.6E} |"
            )
    path = folder / "stdout.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def _write_ranks(record: Record, folder: Path) -> Path:
    """Hash traces, one file a rank; or one table with a column a rank, when only times were recorded."""
    hashed = [series for series in record.series.values() if series.kind == "param_hash"]
    if not hashed:
        return _write_jsonl_columns(record, folder)
    target = folder / "traces"
    target.mkdir(exist_ok=True)
    lines: dict[int, list[str]] = {}
    for series in hashed:
        for step, value in zip(series.steps, series.values, strict=True):
            row = {
                "step": int(step),
                "rank": series.replica,
                "parameter": series.layer,
                "param_hash": f"{int(value):08x}",
                "sharded": bool(series.extra.get("sharded")),
            }
            lines.setdefault(series.replica or 0, []).append(json.dumps(row))
    for rank, rows in lines.items():
        (target / f"hashes_rank{rank}.jsonl").write_text("\n".join(rows) + "\n")
    return target


def _write_jsonl_columns(record: Record, folder: Path) -> Path:
    rows: dict[int, dict[str, float]] = {}
    for name, series in record.series.items():
        for step, value in zip(series.steps, series.values, strict=True):
            rows.setdefault(int(step), {"step": int(step)})[name] = value
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(rows[step]) + "\n" for step in sorted(rows)))
    return path


def _write_flight_recorder(record: Record, folder: Path) -> Path:
    target = folder / "flight_recorder"
    target.mkdir(exist_ok=True)
    for rank in sorted({event["replica"] for event in record.events}):
        entries, status, ranks = [], {}, ()
        for event in record.events:
            if event["replica"] != rank:
                continue
            ranks = event["group_ranks"]
            if event["type"] == "collective":
                entries.append(
                    {
                        "record_id": event["sequence"],
                        "pg_id": 0,
                        "process_group": ("0", "default_pg"),
                        "collective_seq_id": event["sequence"],
                        "p2p_seq_id": 0,
                        "op_id": event["sequence"],
                        "profiling_name": event["operation"],
                        "time_created_ns": event["time_created_ns"],
                        "input_sizes": [[1024]],
                        "input_dtypes": ["Float"],
                        "output_sizes": [[1024]],
                        "output_dtypes": ["Float"],
                        "state": event["state"],
                        "retired": event["state"] == "completed",
                        "timeout_ms": 600000,
                        "is_p2p": False,
                    }
                )
            else:
                status["0"] = {f"last_{w}_collective": event[f"last_{w}"] for w in ("enqueued", "started", "completed")}
        dump = {
            "version": "2.7",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}},
            "pg_status": status,
            "entries": entries,
        }
        (target / f"_dump_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return target
