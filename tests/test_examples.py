"""Every example of a training program, killed with SIGKILL and started again, ends as a run that was never killed."""

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

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
STEPS = 60
KILLED_AFTER = 50
PRINTED = re.compile(r"^step (\d+)(.*)$")
KEPT = {"hf_trainer.py": "model/model.safetensors", "lightning_trainer.py": "model.pt"}


def live(program: str, folder: Path, *, die: bool) -> dict[int, str]:
    """Run a program to its end, or until it has printed some steps; return what it printed of each step."""
    command = [sys.executable, str(EXAMPLES / program), "--folder", str(folder), "--steps", str(STEPS)]
    if program == "fsdp2.py":
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    log = folder.with_suffix(".err")
    printed: dict[int, str] = {}
    with (
        log.open("a") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if found := PRINTED.match(line):
                printed[int(found[1])] = found[2]
            if die and printed and max(printed) >= KILLED_AFTER:
                os.killpg(process.pid, signal.SIGKILL)
                break
    assert die or process.returncode == 0, log.read_text()
    return printed


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
    resumed = live(program, tmp_path / "killed", die=False)
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
