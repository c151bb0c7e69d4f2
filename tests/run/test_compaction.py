"""Compaction in the background."""

from __future__ import annotations

import threading
from pathlib import Path

from holdfast.run.compact import Compaction
from holdfast.run.layout import RunFolder


def test_it_may_be_stopped_on_its_own_thread(tmp_path: Path) -> None:
    """The collector of cycles lets a run go on whichever thread it strikes."""
    compaction = Compaction(RunFolder(tmp_path), rank=0)
    ended: list[BaseException | None] = []

    def stop() -> None:
        try:
            compaction.stop()
        except RuntimeError as error:
            ended.append(error)
        else:
            ended.append(None)

    compaction._thread = threading.Thread(target=stop)
    compaction._thread.start()
    compaction._thread.join()
    assert ended == [None]
