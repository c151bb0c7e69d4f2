"""Start a training job again and again until it is done, and collect what it trained on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from tests.forking import run_script
from tests.integrations.trainer_job import Life

SCRIPT = Path(__file__).with_name("trainer_job.py")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "0"}


def live_all(plan: Sequence[Life], *, timeout: float = 240) -> None:
    """Live the lives of a plan one after the other, all forked from one process."""
    for life in plan:
        Path(life.folder).mkdir(exist_ok=True)
    file = Path(plan[0].folder) / "plan.json"
    file.write_text(json.dumps([asdict(life) for life in plan]))
    done = run_script(SCRIPT, str(file), environment=ENVIRONMENT, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]


def live_under_torchrun(life: Life) -> None:
    """Live one life under torchrun."""
    Path(life.folder).mkdir(exist_ok=True)
    file = Path(life.folder) / "life.json"
    file.write_text(json.dumps(asdict(life)))
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={life.world}"]
    done = subprocess.run(
        [sys.executable, *launch, str(SCRIPT), "--one", str(file)],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    killed = done.returncode == -signal.SIGKILL or "Signal 9" in done.stderr
    assert killed if life.die_after else done.returncode == 0, done.stderr[-3000:]


def errors_of(folder: Path) -> str:
    """Return what the processes of a job said last."""
    return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("errors-*")))


def trained_on(folder: Path, worlds: Sequence[int]) -> dict[int, list[list[int]]]:
    """Return what each optimizer step of the run that survived was trained on: its batches, each over all ranks.

    A life that was killed may have trained further than its last checkpoint; the next life goes on from there, and what
    it did is what counts.
    """
    steps: dict[int, list[list[int]]] = {}
    for life, world in enumerate(worlds):
        ranks: list[dict[int, list[list[int]]]] = []
        for rank in range(world):
            batches: dict[int, list[list[int]]] = defaultdict(list)
            path = folder / f"seen-{life}-{rank}.jsonl"
            assert path.exists(), f"life {life} did not begin:\n{errors_of(folder)}"
            for line in path.read_text().splitlines():
                step, samples = json.loads(line)
                batches[step].append(samples)
            ranks.append(batches)
        first = min((step for batches in ranks for step in batches), default=None)
        assert first is not None, f"life {life} trained on nothing:\n{errors_of(folder)}"
        steps = {step: batches for step, batches in steps.items() if step < first}
        for step in sorted(set().union(*ranks)):
            parts = [batches.get(step, []) for batches in ranks]
            steps[step] = [sorted(chain.from_iterable(batch)) for batch in zip(*parts, strict=False)]
    return steps


def first_step(folder: Path, life: int) -> int:
    """Return the first step that a life trained on."""
    with (folder / f"seen-{life}-0.jsonl").open() as file:
        step, _ = json.loads(next(file))
    return int(step)
