"""Start a training job again and again until it is done, and collect what it trained on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

SCRIPT = Path(__file__).with_name("trainer_job.py")


def live(trainer: str, folder: Path, life: int, *options: str, world: int = 1) -> int:
    """Run one life of the job on ``world`` processes and return its exit code."""
    launch = [sys.executable]
    if world > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*launch, str(SCRIPT), trainer, str(folder), "--life", str(life), *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    killed = done.returncode == -signal.SIGKILL or "Signal 9" in done.stderr
    assert done.returncode == 0 or killed, done.stderr[-3000:]
    return done.returncode


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
            for line in (folder / f"seen-{life}-{rank}.jsonl").read_text().splitlines():
                step, samples = json.loads(line)
                batches[step].append(samples)
            ranks.append(batches)
        first = min(step for batches in ranks for step in batches)
        steps = {step: batches for step, batches in steps.items() if step < first}
        for step in sorted(set().union(*ranks)):
            parts = [batches.get(step, []) for batches in ranks]
            steps[step] = [sorted(chain.from_iterable(batch)) for batch in zip(*parts, strict=False)]
    return steps
