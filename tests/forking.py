"""Start programs and ranks out of one process that has torch and holdfast loaded already.

A new interpreter imports torch and holdfast for longer than most programs of the tests run. What is started here is
forked from a process that has done so once: it has its own environment, output and exit code, and can be killed.
``torchrun`` runs torchrun's own agent with torchrun's own options: the rendezvous, the environment of the ranks and the
restarts are its own, only that it forks the ranks. The command itself is run by ``tests/test_examples.py``.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEADLINE = 240.0
POLL_SECONDS = 0.005
Environment = Mapping[str, str] | None

context: Any = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "torch",
        "torch.distributed.run",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch.utils.data",
        "holdfast.run",
        "holdfast.stream",
        "holdfast.sources",
        "holdfast.debug",
        "holdfast.checkpoint",
        "holdfast.testing",
        "tests.faults.coordinate_worker",
        "redis",
        "etcd3gw.client",
        "fsspec",
    ]
)


class Started:
    """A forked program that may be killed; left, it is."""

    def __init__(
        self,
        target: Callable[..., None],
        *arguments: Any,
        environment: Environment = None,
        folder: Path | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-test-")
        self.outputs = [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        given = (
            *map(str, self.outputs),
            str(folder or Path.cwd()),
            {**os.environ, **(environment or {})},
            target,
            arguments,
        )
        self._process = context.Process(target=_begin, args=given)
        self._process.start()
        self.pid: int = self._process.pid

    def __enter__(self) -> Started:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        self._process.join()
        self._folder.cleanup()

    def lines(self) -> Iterator[str]:
        """Yield what it prints, line by line, until it has ended."""
        while not self.outputs[0].exists() and self.is_alive():
            time.sleep(POLL_SECONDS)
        with self.outputs[0].open() as file:
            text = ""
            while True:
                ended = not self.is_alive()
                text += file.read()
                *whole, text = text.split("\n")
                yield from whole
                if ended:
                    return
                time.sleep(POLL_SECONDS)

    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def kill(self) -> None:
        """Kill it and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()  # it may not have become the head of its group yet

    def wait(self, timeout: float = DEADLINE) -> subprocess.CompletedProcess[str]:
        """Return how it ended, as ``subprocess.run`` would."""
        self._process.join(timeout)
        texts = [path.read_text(errors="replace") if path.exists() else "" for path in self.outputs]
        if self.is_alive():
            raise subprocess.TimeoutExpired("a forked program", timeout, *texts)
        return subprocess.CompletedProcess("a forked program", self._process.exitcode, *texts)


def _begin(
    stdout: str,
    stderr: str,
    folder: str,
    environment: dict[str, str],
    target: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    sys.stdin = open(os.devnull)  # noqa: SIM115 (as long as the process)
    sys.stdout, sys.stderr = open(1, "w", closefd=False, buffering=1), open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    try:
        target(*arguments)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)


def _script(path: str, arguments: tuple[str, ...]) -> None:
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def start_script(path: Path, *arguments: str, environment: Environment = None, folder: Path | None = None) -> Started:
    """Start a Python program as ``python PATH ARGUMENTS…`` does."""
    return Started(_script, str(path), arguments, environment=environment, folder=folder)


def run_script(
    path: Path,
    *arguments: str,
    environment: Environment = None,
    folder: Path | None = None,
    timeout: float = DEADLINE,
) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end."""
    with start_script(path, *arguments, environment=environment, folder=folder) as started:
        return started.wait(timeout)


def _agent(options: tuple[str, ...], module: str, arguments: tuple[str, ...]) -> None:
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    alone = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", f"--rdzv-id={os.getpid()}"]  # --standalone
    config, _, _ = config_from_args(parse_args([*alone, "--start-method=fork", *options, "unused"]))  # type: ignore[no-untyped-call]
    importlib.import_module(module)  # once for all ranks
    elastic_launch(config, _rank)(module, arguments)


def _rank(module: str, arguments: tuple[str, ...]) -> None:
    importlib.import_module(module).main(*arguments)


def torchrun(
    ranks: int,
    module: str,
    *arguments: str,
    options: tuple[str, ...] = (),
    environment: Environment = None,
    timeout: float = DEADLINE,
) -> str:
    """Run a module's ``main`` under torchrun's agent; return what its ranks printed.

    Args:
        ranks: how many, on this host.
        module: by name.
        arguments: of its ``main``.
        options: further options of torchrun.
        environment: added to this process's.
        timeout: seconds.
    """
    given = (f"--nproc-per-node={ranks}", *options)
    with Started(_agent, given, module, arguments, environment=environment) as started:
        done = started.wait(timeout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout
