"""A billion samples cost no more resident memory than a thousand, as the operating system counts it.

What the interpreter allocates is counted beside the loader's other tests; this also sees what NumPy, torch and Arrow
allocate, and what is allocated and never given back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = ["round robin", "contiguous", "hash"]
MOST = 5_000_000

# A process for each length: what one has left behind in allocators must not hide what the other needs. Two runs over a
# thousand samples come first, so that what torch, NumPy and threads allocate once is there before the count begins.
SCRIPT = """
import gc, json, sys
from tests.stream.jobs import VirtualSource
from holdfast.order import Contiguous, HashBased, RoundRobin, WindowShuffle
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

KINDS = {
    "round robin": (RoundRobin(), "full"),
    "contiguous": (Contiguous(), WindowShuffle(100, 4)),
    "hash": (HashBased(64), "full"),
}

def loader(length, kind, batch):
    partition, shuffle = KINDS[kind]
    config = StreamingConfig(batch_size=batch, world_size=2, rank=1, partition_strategy=partition)
    return StreamingShardLoader(StreamDataset(VirtualSource(length), name="a", shuffle=shuffle), config)

def run(length, kind):
    first = loader(length, kind, 16)
    batches = iter(first)
    for _ in range(100):
        next(batches)
    batches.close()
    state = json.loads(json.dumps(first.state_dict()))
    second = loader(length, kind, 24)  # in the middle of an epoch, and at another size: its rest is dealt again
    step = length // 64
    second.load_state_dict({**state, "step": step, "position": first.schedule.delivered_before(step)})
    batches = iter(second)
    for _ in range(100):
        next(batches)
    batches.close()
    second.when("a", length // 2)
    second.samples_in(second.step - 50)
    second.batch_at(second.step - 50)
    second.skip(samples={"a": [1, 2, 3]})
    next(iter(second))

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

for kind in KINDS:
    run(1000, kind)
    run(1000, kind)

def growth(work):
    gc.collect()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # lets the peak begin again, at what is resident now
    before = peak()
    work()
    return peak() - before

grown = {kind: growth(lambda: run(int(sys.argv[1]), kind)) for kind in KINDS}
grown["ten megabytes"] = growth(lambda: bytearray(b"x") * 10_000_000)
print(json.dumps(grown))
"""


@pytest.fixture(scope="module")
def growth() -> dict[int, dict[str, int]]:
    """By how many bytes a run over so many samples raised the peak of resident memory."""
    if sys.platform != "linux":
        pytest.skip("the peak of resident memory is read from /proc")
    found = {}
    for length in (10**3, 10**9):
        command = [sys.executable, "-c", SCRIPT, str(length)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found[length] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_billion_samples_take_no_five_megabytes_more_than_a_thousand(
    growth: dict[int, dict[str, int]], partition: str
) -> None:
    assert growth[10**9][partition] - growth[10**3][partition] < MOST


def test_the_count_would_see_them(growth: dict[int, dict[str, int]]) -> None:
    assert all(found["ten megabytes"] > MOST for found in growth.values())
