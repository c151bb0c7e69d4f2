"""What a run saw of a sample is what its loader handed out, and a log that is not whole proves nothing."""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from holdfast.cli.main import build_app
from holdfast.errors import HoldfastError, OrderError, RunLogError
from holdfast.run import Run, RunLog, RunOptions
from holdfast.run.audit import audit, check_statement
from holdfast.run.chain import START, chained, encode
from holdfast.sources import ArraySource
from holdfast.stream import InterleavedDataset, StreamDataset, StreamingConfig, StreamingShardLoader

Told = dict[tuple[str, int], list[tuple[int, bool, bool]]]
LENGTHS = {"wiki": 61, "chat": 23}


def make_loader(seed: int, *, batch_size: int = 6, offset: int = 0) -> StreamingShardLoader:
    leaves = [
        StreamDataset(ArraySource({"id": np.arange(length) + offset}), name=name, seed=seed)
        for name, length in LENGTHS.items()
    ]
    mixture = InterleavedDataset(leaves, weights={"wiki": 0.6, "chat": 0.4}, seed=seed, name="mix")
    return StreamingShardLoader(mixture, StreamingConfig(batch_size=batch_size))


def make_run(folder: Path, loader: Any, steps: int, *, save_every: int = 7) -> Run:
    model = nn.Linear(1, 1)
    options = RunOptions(save_every=save_every, handle_signals=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Run(folder, model=model, optimizer=optimizer, loader=loader, steps=steps, options=options, monitor=False)


def change_something(loader: StreamingShardLoader, chance: random.Random) -> None:
    way = chance.choice(["skip sample", "skip step", "mask", "reweight"])
    if way == "skip sample":
        loader.skip(samples={"chat": [chance.randrange(23)]})
    elif way == "skip step":
        loader.skip(steps=[loader.step + 2])
    elif way == "mask":
        loader.mask(samples={"wiki": [chance.randrange(61)]})
    else:
        loader.reweight({"wiki": 0.3, "chat": 0.7})


def eventful_run(folder: Path, seed: int) -> Told:
    """Make a run with restarts, skips, masks and changed weights; returns what it was really given."""
    chance = random.Random(seed)
    told: list[tuple[int, list[tuple[str, int, bool]]]] = []
    for stop in sorted(chance.sample(range(10, 60), 3)):
        loader = make_loader(seed, batch_size=chance.choice([4, 6]))
        run = make_run(folder, loader, steps=70)
        for _ in run:
            step = run.step_number
            refs = loader.samples_in(loader.step - 1)
            valid = loader.batch_at(loader.step - 1).get("__valid__")
            masked = [False] * len(refs) if valid is None else (~valid).tolist()
            told.append((step, [(r.source, r.index, m) for r, m in zip(refs, masked, strict=True)]))
            run.step(loss=0.0)
            if chance.random() < 0.1:
                change_something(loader, chance)
            if step == stop:
                break
        run.close()
    seen: Told = defaultdict(list)
    last = {step: number for number, (step, _) in enumerate(told)}
    for number, (step, samples) in enumerate(told):
        for source, index, masked in samples:
            seen[source, index].append((step, last[step] == number, masked))
    return seen


@pytest.mark.parametrize("seed", range(5))
def test_every_sample_was_seen_exactly_when_the_loader_handed_it_out(tmp_path: Path, seed: int) -> None:
    told = eventful_run(tmp_path / "run", seed)
    found = audit(tmp_path / "run", {name: range(length) for name, length in LENGTHS.items()})
    seen: Told = defaultdict(list)
    for source, sightings in found.seen.items():
        for index, step, _, _, _, _, _, counted, masked in sightings.rows():
            seen[source, index].append((step, counted, masked))
    assert {key: sorted(value) for key, value in seen.items()} == {key: sorted(value) for key, value in told.items()}
    assert found.ended
    check_statement(json.loads(json.dumps(found.to_json())))


def test_a_million_samples_are_found_as_brute_force_finds_them(tmp_path: Path) -> None:
    dataset = StreamDataset(ArraySource({"id": np.arange(1_000_000)}), name="numbers", seed=3)
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=50_000))
    run = make_run(tmp_path / "run", loader, steps=23)
    steps = np.full((2, 1_000_000), -1)
    for batch in run:
        epoch = int(run.step_number >= 20)
        steps[epoch, batch["id"].numpy()] = run.step_number
        run.step(loss=0.0)
    run.close()
    seen = audit(tmp_path / "run", {"numbers": range(1_000_000)}).seen["numbers"]
    expected = np.stack([np.where(steps[0] >= 0, steps[0], -1), steps[1]])
    for epoch in (0, 1):
        found = np.full(1_000_000, -1)
        chosen = seen.epoch == epoch
        found[seen.index[chosen]] = seen.step[chosen]
        assert np.array_equal(found, expected[epoch])


def test_a_sample_that_was_never_seen_is_said_to_be_so(tmp_path: Path) -> None:
    loader = make_loader(1)
    run = make_run(tmp_path / "run", loader, steps=3)
    given = {(r.source, r.index) for step in range(3) for r in loader.samples_in(step)}
    for _ in run:
        run.step(loss=0.0)
    run.close()
    never = audit(tmp_path / "run", {"wiki": range(61), "chat": range(23)}).never_seen
    assert {(source, index) for source, indices in never.items() for index in indices} == {
        (name, index) for name, length in LENGTHS.items() for index in range(length)
    } - given


def test_a_statement_that_was_changed_does_not_hold(tmp_path: Path) -> None:
    eventful_run(tmp_path / "run", 2)
    statement = audit(tmp_path / "run", {"wiki": range(61)}).to_json()
    check_statement(statement)
    places: list[tuple[list[Any], Any]] = [
        (["seen", "wiki", 0, 1], 69),
        (["seen", "wiki"], []),
        (["stretches", 0, "rows", 0, 2], 1),
        (["steps"], 4000),
        (["stretches", -1, "rows", 0, 0], 3000),
        (["data", "wiki"], "0" * 32),
        (["seen"], {}),
        (["stretches", 0, "rows"], "nonsense"),
    ]
    for path, value in places:
        changed = json.loads(json.dumps(statement))
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        with pytest.raises(RunLogError):
            check_statement(changed)


def test_unknown_sources_and_samples_and_other_data_are_refused(tmp_path: Path) -> None:
    eventful_run(tmp_path / "run", 3)
    with pytest.raises(OrderError):
        audit(tmp_path / "run", {"nobody": [0]})
    for wrong in (-1, 61):
        with pytest.raises(OrderError, match="no such sample"):
            audit(tmp_path / "run", {"wiki": [wrong]})
    assert audit(tmp_path / "run", {"wiki": [0]}, loader=make_loader(3)).data_checked
    with pytest.raises(RunLogError, match="not what the run read"):
        audit(tmp_path / "run", {"wiki": [0]}, loader=make_loader(3, offset=1))


@pytest.mark.parametrize("index", [-1, 2**63, 10**30])
def test_an_index_that_no_sample_can_have_is_refused(tmp_path: Path, index: int) -> None:
    run = make_run(tmp_path / "run", make_loader(1), steps=3)
    for _ in run:
        run.step(loss=0.0)
    with pytest.raises(OrderError, match="no such sample"):
        audit(tmp_path / "run", {"wiki": [index]})


def test_a_log_whose_end_was_cut_behind_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_loader(1), steps=9)
    for _ in run:
        run.step(loss=0.0)
    assert RunLog(tmp_path / "run").verify() == []
    (file,) = (tmp_path / "run" / "log").glob("*.jsonl")
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-6]))
    (fault,) = RunLog(tmp_path / "run").verify()
    assert "newer than the log" in fault.reason


def test_a_log_without_an_ending_needs_to_be_asked_for(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_loader(1), steps=9)
    for _ in run:
        if run.step_number == 8:
            with pytest.raises(RunLogError, match="ending"):
                audit(tmp_path / "run", {"wiki": [0]})
            assert not audit(tmp_path / "run", {"wiki": [0]}, unfinished=True).ended
        run.step(loss=0.0)
    run.close()


def test_a_head_noted_elsewhere_must_be_in_the_log(tmp_path: Path) -> None:
    eventful_run(tmp_path / "run", 4)
    head = audit(tmp_path / "run", {"wiki": [0]}).heads["0"]
    audit(tmp_path / "run", {"wiki": [0]}, head=head)
    with pytest.raises(RunLogError, match="digest"):
        audit(tmp_path / "run", {"wiki": [0]}, head="0" * 32)


def tamper(folder: Path, chance: random.Random) -> str:
    """Change a log in one way; returns how."""
    files = sorted((folder / "log").iterdir())
    file = chance.choice(files)
    lines = file.read_bytes().splitlines(keepends=True)
    way = chance.choice(["edit", "number", "cut bytes", "cut lines", "drop", "swap", "repeat", "remove", "exchange"])
    if way == "edit":
        content = bytearray(file.read_bytes())
        place = chance.randrange(len(content))
        content[place] ^= 1 << chance.randrange(7)
        file.write_bytes(content)
        return way
    if way == "number":
        number = next(n for n, line in enumerate(lines) if b'"loss":0.0' in line)
        lines[number] = lines[number].replace(b'"loss":0.0', b'"loss":1.0')
    elif way == "cut bytes":
        file.write_bytes(file.read_bytes()[: -chance.randrange(1, file.stat().st_size)])
        return way
    elif way == "cut lines":
        lines = lines[: chance.randrange(1, len(lines))]
    elif way == "drop":
        del lines[chance.randrange(len(lines))]
    elif way == "swap":
        one, other = chance.sample(range(len(lines)), 2)
        lines[one], lines[other] = lines[other], lines[one]
    elif way == "repeat":
        number = chance.randrange(len(lines))
        lines.insert(number, lines[number])
    elif way == "remove":
        file.unlink()
        return way
    else:
        other_file = chance.choice([other for other in files if other != file])
        content_of_other = other_file.read_bytes()
        other_file.write_bytes(b"".join(lines))
        file.write_bytes(content_of_other)
        return way
    file.write_bytes(b"".join(lines))
    return way


def forge(folder: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the records of the last attempt, and make its digests fit again."""
    file = sorted((folder / "log").glob("*.jsonl"))[-1]
    records = [json.loads(line) for line in file.read_bytes().splitlines()]
    change(records)
    head, lines = str(records[0]["previous"]).encode(), []
    for record in records:
        del record["chain"]
        line, head = chained(head, encode(record)[:-1].encode())
        lines.append(line)
    file.write_bytes(b"".join(lines))


def _drop_a_step(records: list[dict[str, Any]]) -> None:
    records.remove([record for record in records if "batches" in record][1])


def _begin_later(records: list[dict[str, Any]]) -> None:
    for record in records:
        if "batches" in record:
            record["step"] += 1000


def _huge_batches(records: list[dict[str, Any]]) -> None:
    next(record for record in records if "batches" in record)["batches"] = [10**18, 10**18 + 1]


@pytest.mark.parametrize("change", [_drop_a_step, _begin_later, _huge_batches])
def test_a_forged_log_whose_steps_do_not_follow_each_other_is_refused(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], None]
) -> None:
    eventful_run(tmp_path / "run", 2)
    forge(tmp_path / "run", lambda records: None)
    audit(tmp_path / "run", {"wiki": [0]})
    forge(tmp_path / "run", change)
    with pytest.raises(RunLogError):
        audit(tmp_path / "run", {"wiki": [0]})


def add_a_rank(folder: Path) -> list[Path]:
    """Give a run a second rank, which recorded the same; returns its files."""
    forge(folder, lambda records: records[0].update(world_size=2))
    head, files = START.encode(), []
    for file in sorted((folder / "log").glob("*.jsonl")):
        records = [json.loads(line) for line in file.read_bytes().splitlines()]
        records[0] |= {"rank": 1, "previous": head.decode()}
        lines = []
        for record in records:
            del record["chain"]
            line, head = chained(head, encode(record)[:-1].encode())
            lines.append(line)
        files.append(file.with_name(file.name.replace("rank-00000", "rank-00001")))
        files[-1].write_bytes(b"".join(lines))
    return files


@pytest.mark.parametrize("way", ["remove", "cut"])
def test_a_log_in_which_the_end_of_one_rank_is_missing_is_refused(tmp_path: Path, way: str) -> None:
    eventful_run(tmp_path / "run", 2)
    last = add_a_rank(tmp_path / "run")[-1]
    assert audit(tmp_path / "run", {"wiki": [0]}).ended
    if way == "remove":
        last.unlink()
    else:
        last.write_bytes(b"".join(last.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(RunLogError, match="on every rank"):
        audit(tmp_path / "run", {"wiki": [0]})
    assert not audit(tmp_path / "run", {"wiki": [0]}, unfinished=True).ended


def check_tampering(folder: Path, rounds: range) -> None:
    eventful_run(folder / "run", 5)
    audit(folder / "run", {"wiki": [0]})
    original = folder / "log"
    shutil.copytree(folder / "run" / "log", original)
    for number in rounds:
        chance = random.Random(number)
        way = tamper(folder / "run", chance)
        try:
            audit(folder / "run", {"wiki": [0]})
        except HoldfastError:
            pass
        else:
            pytest.fail(f"tampering {number} ({way}) was not noticed")
        shutil.rmtree(folder / "run" / "log")
        shutil.copytree(original, folder / "run" / "log")


def test_a_tampered_log_is_refused(tmp_path: Path) -> None:
    check_tampering(tmp_path, range(100))


@pytest.mark.parametrize("head", [None, "0" * 32])
def test_a_run_without_its_log_is_refused(tmp_path: Path, head: str | None) -> None:
    eventful_run(tmp_path / "run", 3)
    for file in (tmp_path / "run" / "log").iterdir():
        file.unlink()
    with pytest.raises(RunLogError, match="no log of rank 0"):
        audit(tmp_path / "run", {"wiki": [0]}, head=head)


@pytest.mark.soak
def test_a_thousand_tampered_logs_are_refused(tmp_path: Path) -> None:
    check_tampering(tmp_path, range(1000))


def test_the_command_writes_a_statement_and_checks_it_again(tmp_path: Path) -> None:
    told = eventful_run(tmp_path / "run", 6)
    (tmp_path / "optout.csv").write_text("source,index\nwiki,5\nchat,7\n")
    app, runner = build_app(), CliRunner()
    arguments = ["audit", str(tmp_path / "run"), "--samples", str(tmp_path / "optout.csv"), "--json"]
    done = runner.invoke(app, [*arguments, "--output", str(tmp_path / "statement.json")])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.output)["seen"]["wiki"]) == len(told["wiki", 5])
    done = runner.invoke(app, ["audit", str(tmp_path / "statement.json")])
    assert done.exit_code == 0
    assert "holds" in done.output
    done = runner.invoke(app, arguments[:-1])
    assert "wiki" in done.output
    (tmp_path / "optout.csv").write_text("source;index\nwiki;5\n")
    done = runner.invoke(app, arguments)
    assert isinstance(done.exception, HoldfastError)
    assert len(RunLog(tmp_path / "run").attempts) == 3
