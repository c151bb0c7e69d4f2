"""States and data are looked at where torch is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

if TYPE_CHECKING:
    from holdfast.stream import StreamingShardLoader

# None in sys.modules makes every `import torch` fail, as it does where there is none.
SCRIPT = """
import contextlib, io, json, sys
sys.modules["torch"] = None
from holdfast.cli.main import run
answers = []
for arguments in json.load(sys.stdin):
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            run(arguments)
        except SystemExit as ended:
            code = ended.code
    answers.append([code, told.getvalue()])
assert sys.modules["torch"] is None and not any(name.startswith("torch.") for name in sys.modules)
print(json.dumps(answers))
"""


def without_torch(*commands: list[str]) -> list[tuple[int, str]]:
    """Run commands one after the other in one fresh process that has no torch."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(commands), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [(code, told) for code, told in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def loader() -> StreamingShardLoader:
    """A mixture resumed at another size."""
    pytest.importorskip("torch", reason="a stream is made with torch, and its state then read without")
    from tests.stream.jobs import dataset_of

    from holdfast.stream import StreamingConfig, StreamingShardLoader

    first = StreamingShardLoader(dataset_of({"a": 40, "b": 20}), StreamingConfig(batch_size=4))
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    second = StreamingShardLoader(dataset_of({"a": 40, "b": 20}), StreamingConfig(world_size=2, rank=0, batch_size=3))
    second.load_state_dict(first.state_dict())
    second.skip(samples={"a": [7]})
    next(iter(second))
    return second


def test_a_state_answers_every_question_without_torch(loader: StreamingShardLoader, tmp_path: Path) -> None:
    state = str(loader.save(tmp_path))
    commands = [["samples", name, "--step", str(step), "--json"] for name in (state, str(tmp_path)) for step in (1, 9)]
    commands += [["when", state, "b", "11", "--json"], ["inspect", state, "--json"], ["inspect", str(tmp_path)]]
    commands += [["samples", state, "--step", "1"], ["when", state, "a", "7"]]
    answers = without_torch(*commands)
    assert [code for code, _ in answers] == [0] * len(commands)
    told: list[Any] = [json.loads(answer) for _, answer in answers[:6]]
    for step, answer in zip((1, 9, 1, 9), told[:4], strict=True):
        assert [ref["index"] for ref in answer["samples"]] == [ref.index for ref in loader.samples_in(step)]
    assert told[4]["seen"] == [entry._asdict() for entry in loader.when("b", 11)]
    assert told[5]["step"] == loader.step
    assert "next step 4" in answers[6][1]


def test_data_is_inspected_without_torch(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text('{"text": "line"}\n' * 5)
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for number in range(3):
            tar.addfile(tarfile.TarInfo(f"{number}.txt"))
    np.arange(64, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    parquet.write_table(pa.table({"index": np.arange(6)}), tmp_path / "rows.parquet")
    names = [["rows.parquet"], ["lines.jsonl"], ["shard.tar"], ["tokens.bin", "--seq-len", "8"]]
    answers = without_torch(*(["inspect", str(tmp_path / name), *options, "--json"] for name, *options in names))
    assert [(code, json.loads(told)["samples"]) for code, told in answers] == [(0, 6), (0, 5), (0, 3), (0, 8)]


def test_a_command_that_needs_torch_says_so_and_exits_2(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    states = Path(__file__).parent.parent / "states" / "v1"
    job, run = str(states / "job-folder"), str(states / "run")
    program = ["--program", str(tmp_path / "train.py")]
    commands = [["job", "show", job], ["verify", str(tmp_path)], ["demo"], ["doctor", "--try"], ["simulate"]]
    commands += [["watch", "tcp://127.0.0.1:1"], ["replay", run, "--steps", "1:3", *program]]
    commands += [[name, run, "--step", "3", *program] for name in ("blame", "prove")]
    for (code, told), command in zip(without_torch(*commands), commands, strict=True):
        assert code == 2, command
        assert "needs torch, which is not installed — pip install 'holdfast[torch]'" in told
        assert told.count("\n") == 1, "nothing is shown before"


def test_the_debugger_and_the_page_need_no_torch(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"step": step, "loss": 3 / (1 + step)}) + "\n" for step in range(200)))
    (debugged, _), (reported, told) = without_torch(
        ["debug", str(log)], ["report", str(log), "-o", str(tmp_path / "page.html")]
    )
    assert (debugged, reported) == (0, 0), told
    assert (tmp_path / "page.html").stat().st_size > 50_000
