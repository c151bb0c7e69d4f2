"""Workers that are killed are replaced and nothing is lost; a killed parent leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.stream.jobs import numbers

from holdfast.errors import WorkerDiedError
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

# Torch tells of a killed worker by raising from a signal handler, wherever the interpreter is: now and then inside a
# callback of the garbage collector (hypothesis has one), where an exception is ignored with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PARENT = Path(__file__).with_name("stream_parent.py")


def loader_of(transform: Any = None, **options: Any) -> StreamingShardLoader:
    config = {"batch_size": 4, "epochs": 1, "num_workers": 2, "prefetch_buffer_size": 8, **options}
    return StreamingShardLoader(StreamDataset(numbers(200), name="a", transform=transform), StreamingConfig(**config))


def workers() -> list[psutil.Process]:
    return [psutil.Process(child.pid) for child in multiprocessing.active_children()]


def kill_one() -> None:
    victim = workers()[0]
    victim.send_signal(signal.SIGKILL)
    # Waited for here, so that the death falls into the training step and not into the loader's own waiting.
    while victim.is_running() and victim.status() != psutil.STATUS_ZOMBIE:
        os.sched_yield()


@pytest.mark.parametrize(("step", "restarts"), [(1, 1), (7, 1), (50, 0)])
def test_a_worker_killed_during_a_training_step_is_replaced_if_it_is_needed_and_nothing_is_lost(
    step: int, restarts: int
) -> None:
    loader = loader_of()
    found: list[int] = []
    for number, batch in enumerate(loader, 1):
        found += batch["index"].tolist()
        if number == step:
            kill_one()
    assert found == [index for batch in loader_of(num_workers=0) for index in batch["index"].tolist()]
    assert loader.get_stats().workers_restarted == restarts
    assert loader.step == 50


def test_every_worker_killed_again_and_again_costs_no_sample_as_long_as_batches_come() -> None:
    loader = loader_of()
    found: list[int] = []
    for number, batch in enumerate(loader, 1):
        found += batch["index"].tolist()
        if number % 10 == 0 and number < 50:
            for process in workers():
                process.send_signal(signal.SIGKILL)
    assert sorted(found) == list(range(200))
    assert 1 <= loader.get_stats().workers_restarted <= 8


def test_a_worker_killed_while_the_loader_waits_for_it_is_replaced_too(tmp_path: Path) -> None:
    flag = tmp_path / "died"

    def dies_once(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["index"] == 77 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    loader = loader_of(dies_once)
    assert sorted(index for batch in loader for index in batch["index"].tolist()) == list(range(200))
    assert loader.get_stats().workers_restarted == 1


def dies_on_seventy_seven(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["index"] == 77:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def test_a_sample_that_kills_worker_after_worker_is_named_among_few() -> None:
    loader = loader_of(dies_on_seventy_seven)
    with pytest.raises(WorkerDiedError, match="3 times") as caught:
        list(loader)
    assert ("a", 77) in caught.value.samples
    assert len(caught.value.samples) <= 8
    at = loader.when("a", 77)[0].step
    assert at is not None
    assert caught.value.steps[0] <= at < caught.value.steps[1]
    loader.skip(samples={"a": [77]})  # what the error tells is enough to go on
    rest = [index for batch in loader for index in batch["index"].tolist()]
    assert 77 not in rest
    assert loader.is_empty()


def shared_names() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "sem.", "psm_", "mp-"))}


def names_in_use() -> set[str]:
    """The names that some living process has mapped or open."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found |= set(re.findall(r"/dev/shm/(\S+)", (process / "maps").read_text()))
            found |= {Path(os.readlink(link)).name for link in (process / "fd").iterdir()}
    return found


@pytest.fixture
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, str(PARENT), request.param], stdout=subprocess.PIPE, text=True)
    with process:  # closes its pipe and waits for it
        yield process
        process.kill()


@pytest.mark.parametrize("parent", ["fork", pytest.param("forkserver", marks=pytest.mark.soak)], indirect=True)
def test_a_parent_killed_outright_leaves_no_worker_no_shared_memory_and_no_semaphore(
    parent: subprocess.Popen[str],
) -> None:
    before = shared_names()
    assert parent.stdout is not None
    children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(children) >= 2
    parent.kill()
    parent.wait()
    gone, alive = psutil.wait_procs(children, timeout=30)
    assert not alive, "workers outlived their parent"
    assert len(gone) == len(children)
    # Other programs of this machine share by name too: what is left over is what no process has in use any more.
    left = shared_names() - before
    assert not (left - names_in_use()) & shared_names()
