"""The README's loop and the examples, killed with SIGKILL and started again, end as runs that were never killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.forking import ROOT, run_script, start_script

from holdfast.run import RunLog

EXAMPLES = ROOT / "examples"
STEPS = 60
KILLED_AFTER = 50
PRINTED = re.compile(r"^step (\d+)(.*)$")
# What torchrun tells a rank that is alone; a group of one needs no port of its own to be met at.
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
KEPT = {"hf_trainer.py": "model/model.safetensors", "lightning_trainer.py": "model.pt"}


def live(program: str, folder: Path, *, die: bool, torchrun: bool = False) -> dict[int, str]:
    """Run a program to its end, or until it has printed some steps; return what it printed of each step."""
    arguments = ("--folder", str(folder), "--steps", str(STEPS))
    printed: dict[int, str] = {}
    if torchrun:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
        done = subprocess.run(
            [*command, str(EXAMPLES / program), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return {int(found[1]): found[2] for found in map(PRINTED.match, done.stdout.splitlines()) if found}
    with start_script(EXAMPLES / program, *arguments, environment=ALONE) as started:
        for line in started.lines():
            if found := PRINTED.match(line):
                printed[int(found[1])] = found[2]
            if die and printed and max(printed) >= KILLED_AFTER:
                started.kill()
        done = started.wait()
    assert die or done.returncode == 0, done.stderr
    return printed


def test_the_readmes_loop_killed_half_way_continues_as_if_nothing_had_happened(tmp_path: Path) -> None:
    (loop,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(loop.splitlines()) <= 30
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        program = tmp_path / name / "loop.py"
        program.write_text("import torch\ntorch.manual_seed(0)\n" + loop)
        with start_script(program, folder=program.parent) as started:
            while name == "killed" and not (program.parent / "runs/exp7/checkpoints/step-00000500").exists():
                assert started.is_alive(), started.wait().stderr
                time.sleep(0.002)
            if name == "killed":
                started.kill()
            done = started.wait()
    assert done.returncode == -signal.SIGKILL
    resumed = run_script(program, folder=program.parent)
    assert resumed.returncode == 0, resumed.stderr
    whole, killed = (RunLog(tmp_path / name / "runs/exp7") for name in ("whole", "killed"))
    assert len(killed.attempts) == 2
    assert killed.verify() == []
    losses = [[(record["step"], record["loss"]) for record in log.steps()] for log in (whole, killed)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 1_000


def trained(program: str, folder: Path) -> dict[str, torch.Tensor]:
    kept = folder / KEPT[program]
    return load_file(kept) if kept.suffix == ".safetensors" else torch.load(kept, weights_only=True)


# The two trainers are killed in tests/integrations too, at several sizes; importing them takes longest.
@pytest.mark.parametrize(
    "program",
    [
        "plain_loop.py",
        "fsdp2.py",
        pytest.param("hf_trainer.py", marks=pytest.mark.soak),
        pytest.param("lightning_trainer.py", marks=pytest.mark.soak),
    ],
)
def test_a_killed_example_continues_as_if_nothing_had_happened(program: str, tmp_path: Path) -> None:
    whole = live(program, tmp_path / "whole", die=False)
    assert max(live(program, tmp_path / "killed", die=True)) < STEPS
    resumed = live(program, tmp_path / "killed", die=False, torchrun=program == "fsdp2.py")
    assert 1 < min(resumed) <= KILLED_AFTER + 1, "it began again, or lost steps"
    assert max(resumed) == max(whole)
    for step, rest in resumed.items():
        assert rest == whole[step]
    if program in KEPT:
        expected = trained(program, tmp_path / "whole")
        for name, tensor in trained(program, tmp_path / "killed").items():
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)


@pytest.mark.soak  # minutes: Ray starts a cluster twice, and replaces a worker
@pytest.mark.timeout(900)
def test_a_killed_worker_of_the_ray_example_is_replaced_and_continues(tmp_path: Path) -> None:
    pytest.importorskip("ray.train.torch", reason="Ray is not installed (pip install 'holdfast[ray]')")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        command = [sys.executable, str(EXAMPLES / "ray_trainer.py"), "--folder", str(folder), "--steps", "200"]
        variables = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "OMP_NUM_THREADS": "1"}
        with (
            folder.with_suffix(".err").open("w") as errors,
            subprocess.Popen(
                [*command, "--workers", "1"], stdout=errors, stderr=errors, env={**os.environ, **variables}
            ) as process,
        ):
            while folder is killed and process.poll() is None and not doomed(folder / "train.log"):
                time.sleep(0.01)
            if folder is killed:
                os.kill(doomed(folder / "train.log"), signal.SIGKILL)
        assert process.returncode == 0, folder.with_suffix(".err").read_text()
    (expected,) = lives(whole / "train.log")
    first, second = lives(killed / "train.log")
    assert KILLED_AFTER <= max(first) < 200, "it was not killed on the way"
    assert 1 < min(second) <= max(first) + 1, "it began again, or lost steps"
    assert max(second) == 200
    assert {**first, **second} == expected
    assert all(expected[step] == rest for step, rest in first.items())


def doomed(log: Path) -> int:
    """Return the process to kill, or 0 as long as it has not come far enough."""
    text = log.read_text() if log.exists() else ""
    return int(text.split(maxsplit=2)[1]) if f"step {KILLED_AFTER} " in text else 0


def lives(log: Path) -> list[dict[int, str]]:
    """Return what each process wrote of its steps."""
    parts = re.split(r"^process .*$", log.read_text(), flags=re.MULTILINE)[1:]
    return [{int(step): rest for step, rest in re.findall(r"^step (\d+)(.*)$", part, re.MULTILINE)} for part in parts]
