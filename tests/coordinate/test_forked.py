"""A child that is forked from a worker leaves the job to its parent, at once and by name."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from holdfast.coordinate import FolderSink, LeasedChunk, StreamCoordinator
from holdfast.coordinate.ledger import Ledger
from holdfast.coordinate.stores import TorchStore
from holdfast.errors import CoordinationError
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset

CHUNKS = 6
QUIET, TOLD, OTHER = 0, 3, 4


class Durable(TorchStore):
    """A store that a client waits for: for two minutes, where nobody says that there is no use."""

    durable = True

    def clone(self) -> Durable:
        return Durable(self._store.clone())


@pytest.mark.parametrize("child_does", ["return", "raise", "exit", "ask"])
def test_a_child_that_is_forked_in_the_work_ends_at_once_and_commits_nothing(child_does: str, tmp_path: Path) -> None:
    parent, codes = os.getpid(), []
    data = StreamDataset(ArraySource({"value": np.arange(4 * CHUNKS)}), name="data", seed=3)

    def work(chunk: LeasedChunk) -> str:
        chunk.open("w").write("of the parent")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # forking a process with threads: that is what this is about
            child = os.fork()
        if child:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        elif child_does == "raise":
            raise ValueError("of the child")
        elif child_does == "exit":
            sys.exit(QUIET)
        elif child_does == "ask":
            reader.results()
        return "parent" if os.getpid() == parent else "child"

    try:
        with StreamCoordinator(Durable(dist.HashStore()), 1) as coordinator:  # type: ignore[attr-defined]
            coordinator.register_worker(0)
            sink = FolderSink(tmp_path / "out")
            reader = coordinator.lease(data, chunk_size=4, folder=tmp_path / "job", sink=sink, max_attempts=1)
            assert reader.process(work) == CHUNKS
            assert {done.payload for done in reader.results()} == {"parent"}
    except BaseException as error:
        if os.getpid() == parent:
            raise
        told = isinstance(error, CoordinationError) and "forked" in str(error)
        os._exit(TOLD if told else QUIET if isinstance(error, SystemExit) else OTHER)
    assert set(codes) == {QUIET if child_does == "exit" else TOLD}
    assert sorted(Ledger(tmp_path / "job", owner="x").read()) == list(range(CHUNKS))
    assert [file.read_text() for file in (tmp_path / "out").glob("part-*")] == ["of the parent"] * CHUNKS
