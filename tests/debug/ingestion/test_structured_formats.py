from __future__ import annotations

import gzip
import json
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.debug.ingestion import LogIngestor, RunLog, read_file, read_path
from holdfast.debug.types import Signal
from holdfast.errors import UnreadableLogError


def named(log: RunLog, name: str, **where: Any) -> Signal:
    found = [s for s in log.signals if s.name == name and all(getattr(s, k) == v for k, v in where.items())]
    assert len(found) == 1, f"{name} in {[signal.name for signal in log.signals]}"
    return found[0]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_sparse_interleaved_lightning_rows_give_each_metric_its_own_steps(tmp_path: Path) -> None:
    rows = ["epoch,lr-Adam,step,train_loss,val_loss", ",0.001,0,,"]
    rows += [f"0,,{n},{3 - n / 10}," for n in range(1, 8)] + ["0,,7,,2.5"]
    log = read_file(write(tmp_path / "metrics.csv", "\n".join(rows) + "\n"))
    assert log.format == "csv"
    assert named(log, "train_loss").steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert named(log, "val_loss").steps.tolist() == [7]
    assert "missing_steps" not in named(log, "train_loss").metadata


def test_a_nan_in_a_csv_is_nan_and_an_empty_cell_is_absent(tmp_path: Path) -> None:
    text = "step,loss,acc\n1,2.0,0.1\n2,nan,0.2\n3,,0.3\n4,inf,NA\n"
    loss = named(read_file(write(tmp_path / "a.csv", text)), "loss")
    assert loss.steps.tolist() == [1, 2, 4]
    assert np.isnan(loss.values[1])
    assert np.isposinf(loss.values[2])
    assert loss.metadata["missing_steps"].tolist() == [3]


def test_a_column_of_zeros_was_not_collected_but_zero_skips_are_zero(tmp_path: Path) -> None:
    text = "step,loss,grad_norm,skipped,acc\n" + "".join(f"{n},0.0,0.0,0,0.{n}\n" for n in range(9))
    log = read_file(write(tmp_path / "a.csv", text))
    assert "not_collected" in named(log, "loss").metadata
    assert "not_collected" in named(log, "grad_norm").metadata
    assert "not_collected" not in named(log, "skipped").metadata


def test_nan_that_fills_the_rows_of_other_metrics_is_dropped(tmp_path: Path) -> None:
    rows = [f"{n},{3 - n / 50},{2.5 - n / 50 if n % 5 == 0 else 'nan'}" for n in range(40)]
    log = read_file(write(tmp_path / "a.csv", "step,loss,val_loss\n" + "\n".join(rows) + "\n"))
    assert named(log, "val_loss").steps.tolist() == list(range(0, 40, 5))
    assert not np.isnan(named(log, "val_loss").values).any()


def test_a_loss_that_turns_nan_for_good_stays_nan(tmp_path: Path) -> None:
    rows = [f"{n},{3 - n / 50 if n < 20 else 'nan'},0.1" for n in range(40)]
    loss = named(read_file(write(tmp_path / "a.csv", "step,loss,lr\n" + "\n".join(rows) + "\n")), "loss")
    assert int(np.isnan(loss.values).sum()) == 20


def test_a_header_written_again_by_a_restarted_run_is_skipped(tmp_path: Path) -> None:
    text = "step,loss\n1,3\n2,2.9\nstep,loss\n3,2.8\n4,2.7\n"
    assert named(read_file(write(tmp_path / "a.csv", text)), "loss").steps.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_any_common_delimiter_and_padded_names_are_understood(tmp_path: Path, delimiter: str) -> None:
    text = delimiter.join(["      epoch", "   train/box_loss"]) + "\n"
    text += "".join(f"   {n}{delimiter}   {1 / (n + 1)}\n" for n in range(6))
    assert named(read_file(write(tmp_path / "results.csv", text)), "train/box_loss").kind == "loss"


def test_the_long_form_of_a_table_is_one_series_a_metric(tmp_path: Path) -> None:
    text = "step,metric,value\n" + "".join(f"{n},loss,{3 - n}\n{n},lr,0.1\n" for n in range(5))
    log = read_file(write(tmp_path / "long.csv", text))
    assert named(log, "loss").values.tolist() == [3, 2, 1, 0, -1]
    assert named(log, "lr").kind == "lr"


def test_rows_of_several_ranks_become_replicas(tmp_path: Path) -> None:
    records = [{"step": n, "rank": rank, "loss": 3 - n + rank} for n in range(5) for rank in range(3)]
    log = read_file(write(tmp_path / "a.jsonl", "".join(json.dumps(r) + "\n" for r in records)))
    assert [named(log, "loss", replica=rank).values[0] for rank in range(3)] == [3, 4, 5]


def test_trainer_state_drops_the_summary_row_and_keeps_bare_infinity(tmp_path: Path) -> None:
    history = [{"step": n, "epoch": n / 10, "loss": 2.0 - n / 10, "grad_norm": 1.0} for n in range(1, 9)]
    history.append({"step": 9, "epoch": 0.9, "loss": 1.0, "grad_norm": float("inf")})
    history.append({"step": 9, "train_runtime": 10.0, "train_loss": 1.4})
    path = write(tmp_path / "trainer_state.json", json.dumps({"log_history": history, "max_steps": 9}))
    log = read_file(path)
    assert log.format == "hf-trainer-state"
    assert "train_loss" not in {signal.name for signal in log.signals}
    assert np.isposinf(named(log, "grad_norm").values[-1])
    assert log.config["max_steps"] == 9


def test_llama_factory_json_lines_are_named_as_such(tmp_path: Path) -> None:
    lines = [
        {"current_steps": n * 10, "total_steps": 90, "loss": 2.0 - n / 10, "lr": 1e-5, "percentage": n}
        for n in range(1, 9)
    ]
    log = read_file(write(tmp_path / "trainer_log.jsonl", "".join(json.dumps(line) + "\n" for line in lines)))
    assert log.format == "llamafactory"
    assert named(log, "loss").steps[-1] == 80


def test_json_lines_keep_nan_and_infinity_on_both_ways_of_reading(tmp_path: Path) -> None:
    rows = [{"step": n, "loss": 1.0 + n, "aux": n} for n in range(40_000)]
    rows[7]["loss"], rows[8]["loss"], rows[9]["loss"] = float("nan"), float("inf"), float("-inf")
    text = "".join(json.dumps(row) + "\n" for row in rows)
    quick = named(read_file(write(tmp_path / "big.jsonl", text)), "loss")  # Large enough for the quick way.
    slow = named(read_file(write(tmp_path / "small.jsonl", "".join(text.splitlines(True)[:100]))), "loss")
    for loss in (quick, slow):
        assert np.isnan(loss.values[7])
        assert loss.values[8:10].tolist() == [np.inf, -np.inf]
    assert len(quick.values) == 40_000


def test_a_last_line_cut_short_by_a_crash_is_left_out(tmp_path: Path) -> None:
    text = "".join(json.dumps({"step": n, "loss": 3 - n / 10}) + "\n" for n in range(8)) + '{"step": 8, "lo'
    log = read_file(write(tmp_path / "a.jsonl", text))
    assert len(named(log, "loss").values) == 8
    assert any("not JSON" in note for note in log.notes)


def test_the_run_log_of_holdfast_keeps_its_configuration_and_events(tmp_path: Path) -> None:
    lines = [{"holdfast": "run-log", "version": 1, "config": {"learning_rate": 0.1}}]
    lines += [{"step": n, "loss": 3 - n / 10} for n in range(6)]
    lines.append({"event": "restart", "step": 3, "from_step": 5})
    log = read_file(write(tmp_path / "run.jsonl", "".join(json.dumps(line) + "\n" for line in lines)))
    assert log.format == "holdfast"
    assert log.config["lr"] == 0.1
    assert log.events[0]["type"] == "restart"


def test_keras_history_and_nested_series_are_columns(tmp_path: Path) -> None:
    history = {"history": {"loss": [3, 2, 1], "val_loss": [3.1, 2.2, 1.3]}, "params": {"epochs": 3}}
    assert named(read_file(write(tmp_path / "h.json", json.dumps(history))), "val_loss").kind == "eval_loss"
    nested = {"train": {"loss": [3, 2, 1]}, "valid": {"loss": [3, 2, 1]}}
    log = read_file(write(tmp_path / "n.json", json.dumps(nested)))
    assert {signal.kind for signal in log.signals} == {"loss", "eval_loss"}


def golden(values: dict[str, Any]) -> str:
    return json.dumps({n: {"start_step": 1, "end_step": 9, "step_interval": 1, "values": v} for n, v in values.items()})


def test_golden_values_that_no_metric_recorded_are_not_nan(tmp_path: Path) -> None:
    losses = {str(n): (3.0 - n / 10 if n < 7 else "nan") for n in range(1, 10)}
    memory = {str(n): (10.0 if n < 7 else "nan") for n in range(1, 10)}
    log = read_file(write(tmp_path / "g.json", golden({"lm loss": losses, "mem-allocated-bytes": memory})))
    loss = named(log, "lm loss")
    assert log.format == "megatron-golden"
    assert not np.isnan(loss.values).any()
    assert "missing_steps" not in loss.metadata


def test_golden_values_that_only_the_loss_lacks_are_missing(tmp_path: Path) -> None:
    losses = {str(n): (3.0 - n / 10 if n < 7 else "nan") for n in range(1, 10)}
    others = {
        name: {str(n): 10.0 for n in range(1, 10)} for name in ("mem-allocated-bytes", "iteration-time", "num-zeros")
    }
    loss = named(read_file(write(tmp_path / "g.json", golden({"lm loss": losses, **others}))), "lm loss")
    assert loss.metadata["missing_steps"].tolist() == [7, 8, 9]


def otlp(step: int, value: Any) -> dict[str, Any]:
    attributes = [{"key": "step", "value": {"intValue": str(step)}}, {"key": "rank", "value": {"intValue": "2"}}]
    point = {"asDouble": value, "timeUnixNano": str(10**18 + step), "attributes": attributes}
    return {
        "resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "train.loss", "gauge": {"dataPoints": [point]}}]}]}]
    }


def test_otlp_exports_are_read_by_line_or_whole_and_their_nan_is_nan(tmp_path: Path) -> None:
    exports = [otlp(n, 3 - n / 10 if n < 5 else "NaN") for n in range(6)]
    log = read_file(write(tmp_path / "m.json", "".join(json.dumps(export) + "\n" for export in exports)))
    loss = named(log, "train/loss")
    assert (log.format, loss.replica, len(loss.values)) == ("otlp-json", 2, 6)
    assert np.isnan(loss.values[-1])
    merged = {"resourceMetrics": [part for export in exports for part in export["resourceMetrics"]]}
    assert len(named(read_file(write(tmp_path / "one.json", json.dumps(merged, indent=1))), "train/loss").values) == 6


def test_mlflow_runs_are_read_from_their_folder(tmp_path: Path) -> None:
    run = tmp_path / "mlruns" / "0" / "abc"
    (run / "metrics" / "train").mkdir(parents=True)
    (run / "params").mkdir()
    (run / "meta.yaml").write_text("run_id: abc\n")
    (run / "metrics" / "train" / "loss").write_text("".join(f"1700000000{n:03d} {3 - n / 10} {n}\n" for n in range(8)))
    (run / "metrics" / "val_loss").write_text("1700000000000 2.5 7\n")
    (run / "params" / "learning_rate").write_text("0.001")
    (log,) = read_path(tmp_path / "mlruns")
    assert log.format == "mlflow"
    assert named(log, "train/loss").steps.tolist() == list(range(8))
    assert log.config["lr"] == 0.001


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def tensorboard(points: list[tuple[int, float]]) -> bytes:
    def record(data: bytes) -> bytes:
        return struct.pack("<Q", len(data)) + b"\0" * 4 + data + b"\0" * 4

    out = record(b"\x09" + struct.pack("<d", 1.0) + field(3, b"brain.Event:2"))
    for step, value in points:
        old = field(1, field(1, b"train/loss") + b"\x15" + struct.pack("<f", value))
        tensor = b"\x08\x01" + field(4, struct.pack("<f", value * 2))
        new = field(1, field(1, b"grad_norm") + field(8, tensor))
        out += record(b"\x09" + struct.pack("<d", 1.0) + b"\x10" + varint(step) + field(5, old + new))
    return out


def test_tensorboard_scalars_of_the_old_and_new_kind_are_read(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(tensorboard([(n * 300, 3.0 - n) for n in range(5)]))
    log = read_file(path)
    assert log.format == "tensorboard"
    assert named(log, "train/loss").steps.tolist() == [0, 300, 600, 900, 1200]
    assert named(log, "grad_norm").values[0] == 6.0


def test_a_tensorboard_file_written_by_tensorboard_itself_is_read(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    for step in range(5):
        values = [Summary.Value(tag="loss", simple_value=float("nan") if step == 4 else 3.0 - step)]
        writer.add_event(Event(step=step, wall_time=1.0, summary=Summary(value=values)))
    writer.close()
    (log,) = read_path(tmp_path)
    assert named(log, "loss").values[:4].tolist() == [3, 2, 1, 0]
    assert np.isnan(named(log, "loss").values[4])


TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: no data\n'


def wandb(
    points: list[tuple[int, dict[str, Any]]], *, printed: str = "", before: str = "", exit_code: int | None = None
) -> bytes:
    out = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
    messages = [field(17, field(4, field(1, field(1, b"lr") + field(16, b'{"value": 0.1}'))))]
    messages += [field(13, field(3, line.encode())) for line in before.splitlines(keepends=True)]
    for step, values in points:
        items = b"".join(field(1, field(1, k.encode()) + field(16, json.dumps(v).encode())) for k, v in values.items())
        messages.append(field(2, items + field(2, b"\x08" + varint(step))))
    messages += [field(13, field(3, line.encode())) for line in printed.splitlines(keepends=True)]
    messages += [] if exit_code is None else [field(18, b"\x08" + varint(exit_code))]
    for message in messages:
        first = True
        while True:
            room = 32768 - len(out) % 32768
            if room < 7:
                out += b"\0" * room
                continue
            piece, message = message[: room - 7], message[room - 7 :]
            kind = (1 if not message else 2) if first else (4 if not message else 3)
            out += struct.pack("<IHB", 0, len(piece), kind) + piece
            first = False
            if not message:
                break
    return out


def test_wandb_records_are_put_together_across_blocks(tmp_path: Path) -> None:
    path = tmp_path / "run-x.wandb"
    path.write_bytes(wandb([(n, {"loss": 3 - n / 10, "note": "x" * 9000, "_timestamp": 1.0}) for n in range(12)]))
    log = read_file(path)
    assert log.format == "wandb"
    assert named(log, "loss").steps.tolist() == list(range(12))
    assert log.config["lr"] == 0.1


def test_a_traceback_that_wandb_kept_is_a_crash_unless_training_goes_on_after_it(tmp_path: Path) -> None:
    error = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nValueError: no data\nsaved\n'
    path = tmp_path / "run-x.wandb"
    points = [(n, {"loss": 3 - n / 10}) for n in range(12)]
    path.write_bytes(wandb([], printed=error))
    assert [event["message"] for event in read_file(path).events] == ["ValueError: no data"]
    path.write_bytes(wandb(points, printed=error))
    assert [event["kind"] for event in read_file(path).events] == ["traceback"]
    path.write_bytes(wandb(points, before=error))
    assert read_file(path).events == ()


@pytest.mark.parametrize(
    ("exit_code", "printed", "kind"),
    [
        (1, "", "exit_code"),  # The console was not recorded: the error may have been anything.
        (1, "Epoch 5: 11%\n" * 30, "interrupted"),  # Lightning exits so if it is interrupted.
        (1, "Epoch 5: 11%\n" * 30 + TRACEBACK, "traceback"),
        (137, "Epoch 5: 11%\n" * 30, "exit_code"),
        (255, "", "interrupted"),
    ],
)
def test_an_exit_code_that_wandb_kept_is_a_crash_unless_the_console_shows_no_error(
    tmp_path: Path, exit_code: int, printed: str, kind: str
) -> None:
    path = tmp_path / "run-x.wandb"
    path.write_bytes(wandb([(n, {"loss": 3 - n / 10}) for n in range(12)], printed=printed, exit_code=exit_code))
    assert kind in {event["kind"] for event in read_file(path).events}


@pytest.mark.parametrize("share", [0.3, 0.5, 0.77, 0.999])
def test_a_truncated_event_or_wandb_file_gives_what_stands_before_the_cut(tmp_path: Path, share: float) -> None:
    for name, data in (
        ("events.out.tfevents.1", tensorboard([(n, 3.0) for n in range(200)])),
        ("run.wandb", wandb([(n, {"loss": 3.0, "note": "x" * 2000}) for n in range(200)])),
    ):
        path = tmp_path / name
        path.write_bytes(data[: int(len(data) * share)])
        (signal, *_) = [s for s in read_file(path).signals if "loss" in s.name]
        assert 200 * share - 30 <= len(signal.values) < 200


def dump(rank: int, *, entries: bool) -> dict[str, Any]:
    entry = {"collective_seq_id": 7, "process_group": ("3", "TP"), "pg_id": 1, "profiling_name": "nccl:all_reduce",
             "state": "scheduled", "is_p2p": False, "input_sizes": [[4]]}  # fmt: skip
    return {
        "version": "2.9",
        "nccl_version": "2.27",
        "pg_config": {n: {"name": n, "desc": d, "ranks": "[0, 1]"} for n, d in (("0", "default_pg"), ("3", "TP"))},
        "pg_status": {n: {"last_enqueued_collective": 7 if entries else 6, "last_started_collective": -1,
                          "last_completed_collective": 6} for n in ("0", "1")},
        "entries": [entry] if entries else [],
    }  # fmt: skip


def test_flight_recorder_dumps_of_a_folder_are_one_run_by_rank(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(dump(rank, entries=rank == 0), protocol=2))
    (log,) = read_path(tmp_path)
    assert log.format == "flight-recorder"
    assert log.config["world_size"] == 2
    pending = [event for event in log.events if event["type"] == "collective"]
    assert [(e["replica"], e["group"], e["sequence"], e["operation"]) for e in pending] == [(0, "3", 7, "all_reduce")]
    status = {(e["replica"], e["group"]): e["last_enqueued"] for e in log.events if e["type"] == "collective_status"}
    assert status[(1, "3")] == 6
    assert {signal.kind for signal in log.signals} == {"collective"}


def test_flight_recorder_dumps_in_json_read_like_the_pickled_ones(tmp_path: Path) -> None:
    plain, pickled = tmp_path / "nccl_trace_rank_0.json", tmp_path / "nccl_trace_rank_0"
    plain.write_text(json.dumps(dump(0, entries=True)))
    pickled.write_bytes(pickle.dumps(dump(0, entries=True), protocol=2))
    first, second = read_file(plain), read_file(pickled)
    assert [dict(event) | {"sizes": None} for event in first.events] == [
        dict(e) | {"sizes": None} for e in second.events
    ]


def test_parameter_hashes_differ_exactly_where_the_hashes_do(tmp_path: Path) -> None:
    for rank in range(2):
        records = [
            {"var_name": "w", "var_type": "torch.nn.Parameter", "process_id": 10 + rank,
             "meta_vars": {"step": step, "_DATA_PARALLEL_RANK": str(rank)},
             "attributes": {"data": step if step < 3 else step + rank, "tensor_model_parallel": False}}
            for step in range(5)
        ]  # fmt: skip
        (tmp_path / f"trace_{10 + rank}.log").write_text("".join(json.dumps(r) + "\n" for r in records))
    (log,) = read_path(tmp_path)
    first, second = (named(log, "param_hash", replica=rank) for rank in range(2))
    assert (first.values == second.values).tolist() == [True, True, True, False, False]
    assert first.layer == "w"
    assert first.metadata["sharded"] is False


def test_parameter_hashes_some_of_which_look_like_numbers_are_hashes_all_the_same(tmp_path: Path) -> None:
    hashes = random.Random(0)
    names = [f"layer.{number}" for number in range(15)]
    found = {(name, step): f"{hashes.getrandbits(32):08x}" for name in names for step in range(0, 48, 2)}
    for rank in range(2):
        records = [
            {"step": step, "rank": rank, "parameter": name, "param_hash": value, "sharded": False}
            for (name, step), value in found.items()
        ]
        (tmp_path / f"hashes_rank{rank}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (log,) = read_path(tmp_path)
    assert log.format == "parameter-hashes"
    assert {(signal.layer, signal.replica) for signal in log.signals} == {(name, r) for name in names for r in range(2)}


def test_a_folder_of_runs_and_a_folder_that_is_one_run_are_told_apart(tmp_path: Path) -> None:
    table = "step,loss\n" + "".join(f"{n},{3 - n / 10}\n" for n in range(9))
    for name in ("version_0", "version_1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text(table)
        (tmp_path / name / "hparams.yaml").write_text("lr: 1\n")
    assert any("2 runs" in note for note in read_path(tmp_path)[0].notes)
    (one,) = read_path(tmp_path / "version_0")
    assert any("one run" in note for note in one.notes)


def test_of_a_trainers_checkpoints_only_the_newest_state_is_read(tmp_path: Path) -> None:
    for step in (10, 200):
        (tmp_path / f"checkpoint-{step}").mkdir()
        history = [{"step": n, "loss": 3 - n / 500} for n in range(1, step, 2)]
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    (log,) = read_path(tmp_path)
    assert named(log, "loss").steps[-1] == 199


def test_a_compressed_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"  # Known by its content, not by its name.
    path.write_bytes(gzip.compress("".join(json.dumps({"step": n, "loss": 1.0 + n}) + "\n" for n in range(9)).encode()))
    assert len(named(read_file(path), "loss").values) == 9


@pytest.mark.parametrize("content", [b"", b"\n\n", b"just words here\nand here\n", bytes(range(256)) * 40])
def test_what_is_no_log_is_refused_with_the_file_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(UnreadableLogError) as caught:
        LogIngestor().ingest(path)
    assert caught.value.where["file"] == str(path)


def test_the_nameless_index_that_pandas_writes_is_no_metric(tmp_path: Path) -> None:
    text = ",loss\n" + "".join(f"{n},{3 - n / 10}\n" for n in range(9))
    log = read_file(write(tmp_path / "frame.csv", text))
    assert [signal.name for signal in log.signals] == ["loss"]


def test_a_list_of_numbers_is_named_by_its_file(tmp_path: Path) -> None:
    log = read_file(write(tmp_path / "train_loss.json", json.dumps([3 - n / 10 for n in range(9)])))
    assert [(signal.name, signal.kind, len(signal.values)) for signal in log.signals] == [("train_loss", "loss", 9)]


def test_ranks_of_one_data_parallel_group_stay_apart_and_shards_are_marked(tmp_path: Path) -> None:
    for process in (101, 102):  # Two tensor-parallel ranks: the same data-parallel rank in both files.
        records = [
            {"var_name": name, "var_type": "torch.nn.Parameter", "process_id": process,
             "meta_vars": {"step": step, "_DATA_PARALLEL_RANK": "0"},
             "attributes": {"data": step + (process if name == "mlp" else 0), "tensor_model_parallel": name == "mlp"}}
            for step in range(4)
            for name in ("norm", "mlp")
        ]  # fmt: skip
        (tmp_path / f"trace_{process}.log").write_text("".join(json.dumps(r) + "\n" for r in records))
    (log,) = read_path(tmp_path)
    assert {(s.layer, s.replica, s.metadata["sharded"]) for s in log.signals} == {
        ("norm", 0, False), ("norm", 1, False), ("mlp", 0, True), ("mlp", 1, True),
    }  # fmt: skip


def test_results_of_older_yolo_are_read_without_a_header(tmp_path: Path) -> None:
    row = "{n:>9}/99  1.93G  {loss}  0.0935  0  0.1918  24  416  0.1  0.2  0.3  0.1  0.09  0.05  0\n"
    text = "".join(row.format(n=n, loss=0.1 - n / 2000) for n in range(100))
    log = read_file(write(tmp_path / "results.txt", text))
    assert log.format == "yolo-results"
    assert named(log, "train/box_loss").values.tolist() == [0.1 - n / 2000 for n in range(100)]
    assert named(log, "metrics/mAP_0.5").kind == "metric"
    assert named(log, "val/obj_loss").kind == "eval_loss"


def test_settings_may_stand_above_the_header_of_a_table(tmp_path: Path) -> None:
    text = "meta:batch=2,epochs=1,rate=0.0001,load=False\nidx,D_loss,G_loss,epoch\n"
    text += "".join(f"{n},0.5,{1 / (n + 1)},0\n" for n in range(20))
    assert len(named(read_file(write(tmp_path / "loss.csv", text)), "G_loss").values) == 20


def test_a_long_table_may_call_its_tags_types_and_name_only_the_split(tmp_path: Path) -> None:
    rows = [f"{n},{kind},{10 / (n + 1)}" for n in range(12) for kind in ("val", "train")]
    log = read_file(write(tmp_path / "m.csv", "step,type,value\n" + "\n".join(rows) + "\n"))
    assert named(log, "train loss").kind == "loss"
    assert named(log, "val loss").kind == "eval_loss"
    assert named(log, "train loss").steps.tolist() == list(range(12))
