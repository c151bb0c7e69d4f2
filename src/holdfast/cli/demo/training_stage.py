"""Training under torchrun: once uninterrupted on 2 ranks, once killed with SIGKILL and resumed on 3."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from holdfast.cli.demo import Row
from holdfast.cli.demo.corpus import write_corpus
from holdfast.errors import StreamError

__all__ = ["run"]

STEPS = 40
SAVE_EVERY = 10
KILL_AFTER = 17
GLOBAL_BATCH = 24
PATIENCE = 180.0  # maximum number of seconds for a training process before the demo gives up


def run(folder: Path, say: Callable[[str], None]) -> list[Row]:
    """Train twice and compare the samples delivered and the metrics."""
    write_corpus(folder)
    sizes = [os.path.getsize(folder / f"{name}.bin") / 1e6 for name in ("modules", "packages")]
    say(
        f"text of the Python standard library: {sizes[0]:.1f} MB of modules, {sizes[1]:.1f} MB of packages, mixed 70:30"
    )
    whole = _finish(_start(folder, "undisturbed", ranks=2), folder, "undisturbed")
    say(f"uninterrupted: {STEPS} steps on 2 ranks, loss {whole['loss']:.2f}")

    process = _start(folder, "killed", ranks=2)
    _wait_for_step(process, folder / "killed-from-0-rank-0.jsonl", KILL_AFTER)
    _kill(process)
    reached = len(_trace(folder, "killed-from-0"))
    say(f"killed with SIGKILL after step {reached - 1} (last checkpoint: step {reached // SAVE_EVERY * SAVE_EVERY})")
    resumed = _finish(_start(folder, "killed", ranks=3), folder, "killed")
    start = reached // SAVE_EVERY * SAVE_EVERY
    say(f"resumed from step {start} on 3 ranks: loss {resumed['loss']:.2f}")

    expected = _trace(folder, "undisturbed-from-0")
    got = {step: seen for step, seen in _trace(folder, "killed-from-0").items() if step < start}
    got |= _trace(folder, f"killed-from-{start}")
    same = sum(got.get(step) == seen for step, seen in expected.items())
    samples = sum(len(seen) for seen in expected.values())
    say(f"steps whose samples are identical, in order: {same} of {STEPS} ({samples} samples, none lost, none repeated)")
    equal = whole["metrics"] == resumed["metrics"]
    for name, figures in resumed["metrics"].items():
        say(f"{name}: {figures['samples_seen']} samples, {figures['tokens_seen']} tokens, as uninterrupted: {equal}")
    return [
        Row("killed, resumed on 3 ranks instead of 2: order", f"{same} of {STEPS} steps identical", same == STEPS),
        Row("… and its metrics", "bit-equal" if equal else "differ", equal),
    ]


def _start(folder: Path, name: str, ranks: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d"]
    command += [
        "--rdzv-endpoint=localhost:0",
        "-m",
        "holdfast.cli.demo.trainer",
        "--folder",
        str(folder),
        "--name",
        name,
    ]
    command += ["--steps", str(STEPS), "--global-batch", str(GLOBAL_BATCH), "--save-every", str(SAVE_EVERY)]
    log = open(folder / f"{name}.log", "a", encoding="utf-8")  # noqa: SIM115 - belongs to the process
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True, env=environment)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill torchrun and its ranks, which run in sessions of their own, with SIGKILL."""
    launcher = psutil.Process(process.pid)
    for victim in [launcher, *launcher.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    process.wait()


def _finish(process: subprocess.Popen[str], folder: Path, name: str) -> dict[str, Any]:
    try:
        code = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        _kill(process)
        code = -1
    if code != 0:
        tail = (folder / f"{name}.log").read_text(errors="replace")[-1500:]
        raise StreamError(f"the training process failed:\n{tail}", exit_code=code)
    result: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return result


def _wait_for_step(process: subprocess.Popen[str], path: Path, step: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_text().count("\n") > step:
            return
        time.sleep(0.02)
    if process.poll() is None:
        _kill(process)
    raise StreamError("the training process did not reach the expected step in time", step=step, log=str(path.parent))


def _trace(folder: Path, prefix: str) -> dict[int, list[Any]]:
    """Return the samples that each step delivered, over all ranks, by position; only steps that every rank finished."""
    steps: dict[int, list[Any]] = {}
    ranks: dict[int, int] = {}
    files = sorted(folder.glob(f"{prefix}-rank-*.jsonl"))
    for path in files:
        for line in path.read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # the line that was being written when the process was killed
                break
            steps.setdefault(record["step"], []).extend(record["seen"])
            ranks[record["step"]] = ranks.get(record["step"], 0) + 1
    return {step: sorted(seen) for step, seen in steps.items() if ranks[step] == len(files)}
