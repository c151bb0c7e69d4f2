"""Ways to damage a run's folder, as anyone who sends one could."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.run.job import make_job, train

from holdfast.run.chain import START, chained, encode, split_line
from holdfast.run.compact import compact
from holdfast.run.layout import LogFile, RunFolder
from holdfast.run.recorder import Recorder

__all__ = ["damage", "make_run"]

DEEP = 100_000
VALUES: tuple[Any, ...] = (
    None, "", "x", -1, 0, 2**70, 10**400, 1e308, -1e308, float("nan"), float("inf"), [], {}, True, [None], {"a": []},
    "\x1b[31m\ud800", [0, 2**59], {"0": 1}, 1.5, "DEEP", "9" * 400,
)  # fmt: skip
FINDING = {
    "failure": "loss_spike", "title": "Loss spike", "severity": "critical", "confidence": 0.9, "onset": 6,
    "certain_step": 7, "last_step": 8, "rank": 0, "names_rank": False, "layer": None, "signal": "loss",
    "evidence": ["loss: far out"], "advice": "look", "found_at": 8,
    "causes": [{"cause": "data", "confidence": 0.5, "remediation": "x", "evidence_for": ["a"], "evidence_against": []}],
}  # fmt: skip
MORE: tuple[dict[str, Any], ...] = (
    {"event": "evaluation", "name": "held out", "step": 9, "figures": {"loss": 0.5}, "evaluation_time": 0.1, "at": 9.0},
    {"event": "metrics", "step": 9, "figures": {"loss/numbers": 0.5}},
    {"event": "finding", **FINDING, "action": "rollback"},
    {"event": "alert", "finding": FINDING},
    {"event": "rollback", "number": 1, "step": 10, "to": 5, "checkpoint": "step-00000005", "finding": FINDING,
     "suspects": [5, 10], "skipped": [5, 10], "cure": {"skip_batches": [5, 10]}},
)  # fmt: skip
ANSWER = {
    "verdict": "these samples", "reason": "so", "window": [5, 7], "cure": None, "steps": [5, 6, 7],
    "suspects": [{"source": "numbers", "index": 3, "score": 9.0, "preview": {"x": "1"}}],
    "as_it_was": [1.0, 2.0, 3.0], "without_suspects": [1.0, 1.0, 1.0], "without_random": [[1.0, 2.0, 3.0]],
}  # fmt: skip


def make_run(folder: Path) -> Path:
    """Make a sound run of two attempts and two ranks with every kind of file and record, one part compacted."""
    for target in (10, 20):
        job = make_job()
        with job.run(folder, steps=target, config={"batch_size": 4}) as run:
            train(job, run)
    place = RunFolder(folder)
    contents = {file: file.path.read_bytes().splitlines() for file in place.log_files()}
    for file in contents:
        file.path.unlink()
    for rank in (0, 1):
        head = START
        for file, lines in contents.items():
            records = [{**json.loads(line)} for line in lines]
            for record in records:
                record.pop("chain")
            header = {name: value for name, value in records[0].items() if name not in _OWN}
            header |= {"world_size": 2, "ranks_before": {}}
            recorder = Recorder(place, rank=rank, attempt=file.attempt, header=header, head=head)
            for record in records[1:-1]:
                recorder.write(record)
            for record in (*(MORE if file.attempt == 1 and rank == 0 else ()), records[-1]):
                recorder.write(record)
            recorder.close()
            head = recorder.head
    compact(place.log_files(rank=0)[0])
    place.investigations.mkdir()
    for kind in ("blame", "proof"):
        (place.investigations / f"{kind}-00000006.json").write_text(json.dumps(ANSWER))
    return folder


_OWN = ("holdfast", "version", "attempt", "rank", "part", "previous")


def damage(source: Path, target: Path, seed: int) -> str:
    """Copy a run and damage the copy in one way; returns which."""
    plan = random.Random(seed)
    shutil.copytree(source, target, symlinks=True)
    way = plan.choices(WAYS, weights=[6 if each in (_lines, _field) else 1 for each in WAYS])[0]
    return f"{way.__name__}: {way(plan, RunFolder(target))}"


def _text_file(plan: random.Random, folder: RunFolder) -> LogFile:
    return plan.choice([file for file in folder.log_files() if not file.is_compacted])


def _any_file(plan: random.Random, folder: RunFolder) -> Path:
    return plan.choice([path for path in sorted(folder.root.rglob("*")) if path.is_file() and path.name != "lock"])


def _bytes(plan: random.Random, folder: RunFolder) -> str:
    path = _any_file(plan, folder)
    content = bytearray(path.read_bytes())
    for _ in range(plan.choice((1, 1, 3, 50))):
        content[plan.randrange(len(content))] = plan.randrange(256)
    path.write_bytes(content)
    return path.name


def _cut(plan: random.Random, folder: RunFolder) -> str:
    path = _any_file(plan, folder)
    content = path.read_bytes()
    path.write_bytes(content[: plan.randrange(len(content))] + plan.choice((b"", b"\n", os.urandom(300))))
    return path.name


def _lines(plan: random.Random, folder: RunFolder) -> str:
    file = _text_file(plan, folder)
    lines = file.path.read_bytes().splitlines(keepends=True)
    place = plan.randrange(len(lines))
    way = plan.choice(("drop", "double", "reverse", "shuffle", "half", "empty", "garbage", "deep", "first", "repeat"))
    if way == "drop":
        del lines[place]
    elif way == "double":
        lines.insert(place, lines[place])
    elif way == "reverse":
        lines.reverse()
    elif way == "shuffle":
        plan.shuffle(lines)
    elif way == "half":
        lines[place] = lines[place][: len(lines[place]) // 2] + b"\n"
    elif way == "empty":
        lines[place] = b"\n"
    elif way == "garbage":
        lines[place] = plan.choice((b"null\n", b"5\n", b"[]\n", b'"s"\n', b"{}\n", b"\xff\xfe\x00\n", b"NaN\n"))
    elif way == "deep":
        lines.insert(place, plan.choice((b"[" * DEEP + b"]" * DEEP, b'{"step":1,"x":' + b'{"a":' * DEEP)) + b"\n")
    elif way == "first":
        del lines[0]
    else:
        lines = lines * 40
    _write(plan, file, lines)
    return f"{way} at {place} of {file.path.name}"


def _field(plan: random.Random, folder: RunFolder) -> str:
    """Replace, remove or rename a field, in its depth or at the top, in one line or in all of its kind."""
    file = _text_file(plan, folder)
    records = [json.loads(line) for line in file.path.read_bytes().splitlines()]
    kinds = sorted({_kind(record) for record in records})
    kind = plan.choice(kinds)
    chosen = [record for record in records if _kind(record) == kind]
    chosen = chosen if plan.random() < 0.5 else [plan.choice(chosen)]
    name = plan.choice(sorted(set(chosen[0]) - {"chain"}))
    value = plan.choice(VALUES)
    for record in chosen:
        inner = record.get(name)
        if isinstance(inner, dict) and inner and plan.random() < 0.5:
            inner[plan.choice(sorted(inner))] = value
        elif isinstance(inner, list) and inner and plan.random() < 0.5:
            inner[plan.randrange(len(inner))] = value
        elif plan.random() < 0.2:
            record.pop(name, None)
        else:
            record[name] = value
    _write(plan, file, [_encoded(record) for record in records])
    return f"{kind}.{name} = {value!r}"[:90] + f" in {len(chosen)} lines"


def _encoded(value: Any) -> bytes:
    return encode(value).replace('"DEEP"', "[" * DEEP + "]" * DEEP).encode() + b"\n"


def _kind(record: dict[str, Any]) -> str:
    return "header" if "holdfast" in record else str(record.get("event", "step"))


def _write(plan: random.Random, file: LogFile, lines: list[bytes]) -> None:
    """Write lines, often with a chain that holds: nothing keeps a sender from computing one."""
    if plan.random() < 0.5:
        head, lines = _head(lines), [line.rstrip(b"\n") for line in lines]
        for number, line in enumerate(lines):
            parts = split_line(line)
            body = parts[0] if parts is not None else line.removesuffix(b"}")
            lines[number], head = chained(head, body)
    file.path.write_bytes(b"".join(lines))


def _head(lines: list[bytes]) -> bytes:
    try:
        return str(json.loads(lines[0])["previous"]).encode("utf-8", "replace")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return START.encode()


def _not_a_file(plan: random.Random, folder: RunFolder) -> str:
    path = _any_file(plan, folder)
    path.unlink()
    way = plan.choice(("fifo", "folder", "link out", "dangling", "loop", "device", "empty", "huge"))
    if way == "fifo":
        os.mkfifo(path)
    elif way == "folder":
        path.mkdir()
    elif way in ("link out", "dangling", "loop", "device"):
        places = {"link out": "/etc/passwd", "dangling": "/nowhere/at/all", "loop": path.name, "device": "/dev/zero"}
        path.symlink_to(places[way])
    else:
        path.write_bytes(b"")
        os.truncate(path, (1 << 40) if way == "huge" else 0)
    return f"{way} for {path.name}"


def _folders(plan: random.Random, folder: RunFolder) -> str:
    path = plan.choice([path for path in sorted(folder.root.rglob("*")) if path.is_dir()])
    shutil.rmtree(path)
    way = plan.choice(("gone", "file", "fifo", "link out", "link up", "odd names"))
    if way == "file":
        path.write_bytes(b"x")
    elif way == "fifo":
        os.mkfifo(path)
    elif way == "link out":
        path.symlink_to("/etc")
    elif way == "link up":
        path.symlink_to("..")
    elif way == "odd names":
        path.mkdir()
        for name in ("step-abc", "step-" + "9" * 200, "attempt-00000.rank-00000.part-000.jsonl", "blame-x.json", "\n"):
            (path / name).mkdir()
    return f"{way} for {path.name}"


def _swapped(plan: random.Random, folder: RunFolder) -> str:
    one, other = _any_file(plan, folder), _any_file(plan, folder)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return f"{one.name}, {other.name}"


def _renamed(plan: random.Random, folder: RunFolder) -> str:
    file = plan.choice(folder.log_files())
    numbers = [plan.choice((0, 1, 2, 7, 10**40)) for _ in range(3)]
    name = f"attempt-{numbers[0]:05d}.rank-{numbers[1]:05d}.part-{numbers[2]:03d}.{plan.choice(('jsonl', 'parquet'))}"
    os.replace(file.path, file.path.with_name(name))
    return f"{file.path.name} to {name}"


def _table(plan: random.Random, folder: RunFolder) -> str:
    """Put another table in the place of a compacted part, or a column of another type or content into it."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    path = next(file.path for file in folder.log_files() if file.is_compacted)
    table = parquet.read_table(path)
    way = plan.choice(("columns", "type", "numbers", "nulls", "many", "rows"))
    name = plan.choice(table.column_names)
    place = table.column_names.index(name)
    odd = plan.choice((float("nan"), float("inf"), -1.0, 1e300, 0.5))
    if way == "columns":
        table = table.drop_columns([name])
    elif way == "type":
        column = arrow.array([plan.choice((b"\xff", b"x"))] * len(table), arrow.binary())
        table = table.set_column(place, name, column)
    elif way == "numbers":
        column = arrow.array([odd] * len(table), arrow.float64())
        table = table.set_column(table.column_names.index("value/step"), "value/step", column)
    elif way == "nulls":
        table = table.set_column(place, name, arrow.nulls(len(table), table.schema.field(name).type))
    elif way == "many":
        table = arrow.table({name: arrow.nulls(1 << 18, table.schema.field(name).type) for name in table.column_names})
    else:
        table = arrow.concat_tables([table.slice(5), table, table.slice(0, 3)])
    parquet.write_table(table, path)
    return f"{way} of {name}"


def _document(plan: random.Random, folder: RunFolder) -> str:
    """Replace a value of ``run.json`` or of an investigation, or the whole of it."""
    path = plan.choice([folder.identity, *sorted(folder.investigations.iterdir())])
    content = json.loads(path.read_text())
    name, value = plan.choice(sorted(content)), plan.choice(VALUES)
    inner = content[name]
    if plan.random() < 0.3:
        content = value
    elif isinstance(inner, list) and inner and isinstance(inner[0], dict) and plan.random() < 0.7:
        inner[0][plan.choice(sorted(inner[0]))] = value
    elif isinstance(inner, dict) and inner:
        inner[plan.choice(sorted(inner))] = value
    else:
        content[name] = value
    path.write_bytes(_encoded(content))
    return f"{path.name}: {name} = {value!r}"[:90]


WAYS: tuple[Callable[[random.Random, RunFolder], str], ...] = (
    _bytes, _cut, _lines, _field, _not_a_file, _folders, _swapped, _renamed, _table, _document,
)  # fmt: skip
