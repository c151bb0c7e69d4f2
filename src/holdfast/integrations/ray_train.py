"""A stream in Ray Train: ``stream = prepare(loader)`` and ``report(…, checkpoint=checkpoint(stream, folder))``.

``ray.train.report`` keeps everything in a checkpoint's folder and passes it to the workers it restarts, whether or not
their number is the same. So the stream's state is one file there. Ray decides when workers are restarted, and how many;
which samples they train on does not depend on it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray.train

from holdfast.errors import StateError
from holdfast.integrations.loop import STATE_KEY, TrainingStream
from holdfast.integrations.ray_files import STATE_FILE, read_state, write_state
from holdfast.stream import StreamingShardLoader

__all__ = ["STATE_FILE", "checkpoint", "prepare"]


def prepare(loader: StreamingShardLoader, **options: Any) -> TrainingStream:
    """Return the loader's batches, from the position in the newest Ray checkpoint. Call it in the training function.

    Args:
        loader: one worker's batches; leave rank and world size to ``torch.distributed``, which Ray has set up.
        **options: ``folder`` (on storage all workers share), ``model``, ``optimizer``, ``metrics``, ``on_finding`` … of
            ``TrainingStream``, to record the run; then call ``stream.step(loss)`` after every optimizer step.

    Raises:
        StateError: Ray resumes from a checkpoint that was saved without the stream.
    """
    stream = TrainingStream(loader, **options)
    found = ray.train.get_checkpoint()
    if found is None:
        return stream
    with found.as_directory() as folder:
        state = read_state(Path(folder))
    if not isinstance(state, dict) or STATE_KEY not in state:
        raise StateError(
            "the Ray checkpoint holds no stream state, so this run would repeat data it has seen",
            checkpoint=found.path,
            hint="report checkpoints as checkpoint(stream, folder), or start a run with another name",
        )
    stream.load_state_dict(state)
    return stream


def checkpoint(stream: TrainingStream, folder: str | Path) -> ray.train.Checkpoint | None:
    """Add the stream's state to what the program has saved in a folder, for ``ray.train.report``.

    All workers call it.

    Args:
        stream: what ``prepare`` returned.
        folder: this worker's folder with model and optimizer, in any format; workers other than the first may leave it
            empty.

    Returns:
        The checkpoint to report; None if a worker has nothing to add.
    """
    state = stream.state_dict()
    place = Path(folder)
    if ray.train.get_context().get_world_rank() == 0:
        write_state(place, state)
    return ray.train.Checkpoint.from_directory(place) if any(place.iterdir()) else None
