"""Whether the newest checkpoint of a trainer in a folder holds the stream's position, for ``holdfast doctor``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.integrations.finished import newest_finished
from holdfast.integrations.ray_files import read_state
from holdfast.integrations.trainer_checkpoints import newest_checkpoint, unfinished_checkpoints

__all__ = ["Carried", "carried_in"]


@dataclass(frozen=True, slots=True)
class Carried:
    """What a trainer's newest checkpoint holds of the stream.

    Attributes:
        trainer: the name of the trainer.
        checkpoint: the path of the checkpoint.
        batches: how many batches were trained on, as the stream counts them; None if it holds no stream state, or if
            that is unknown.
        fault: why the checkpoint cannot be resumed from, or why that is unknown; empty if it can be read.
    """

    trainer: str
    checkpoint: str
    batches: int | None
    fault: str = ""


def carried_in(folder: Path) -> list[Carried]:
    """Return what the newest checkpoint of each trainer in a folder holds."""
    return [*_transformers(folder), *_lightning(folder), *_accelerate(folder), *_ray(folder)]


def _transformers(folder: Path) -> Iterator[Carried]:
    path, unfinished = newest_checkpoint(folder), unfinished_checkpoints(folder)
    if path is not None:
        state = json.loads((Path(path) / "trainer_state.json").read_text(encoding="utf-8"))
        saved = _at(state, "stateful_callbacks", "HoldfastCallback", "attributes", "carried", "stream")
        yield Carried("transformers", path, _step(saved))
    elif unfinished:
        yield Carried("transformers", unfinished[0], None, "it is incomplete, and so is every other one")


def _lightning(folder: Path) -> Iterator[Carried]:
    path = _newest(folder.glob("*.ckpt"))
    if path is None:
        return
    try:
        state = _load(path)
    except Exception as error:  # whatever torch raises for a torn file, or for one that holds more than data
        yield Carried("lightning", str(path), None, f"it cannot be read safely: {_first_line(error)}")
        return
    loaders = _at(state, "loops", "fit_loop", "state_dict", "combined_loader")
    steps = [_step(loader) for loader in loaders] if isinstance(loaders, list) else []
    yield Carried("lightning", str(path), next((step for step in steps if step is not None), None))


def _accelerate(folder: Path) -> Iterator[Carried]:
    whole = newest_finished(folder) or newest_finished(folder / "checkpoints")
    found = folder.glob("**/custom_checkpoint_*.pkl")
    path = Path(whole) if whole else _newest({file.parent for file in found})
    if path is None:
        return
    try:
        parts = [_load(file) for file in sorted(path.glob("custom_checkpoint_*.pkl"))]
    except Exception as error:  # as above
        yield Carried("accelerate", str(path), None, f"it cannot be read safely: {_first_line(error)}")
        return
    texts = [part["holdfast"] for part in parts if isinstance(part, dict) and isinstance(part.get("holdfast"), str)]
    step = _step(_at(json.loads(texts[0]), "stream")) if texts else None
    if step is not None and whole is None:
        yield Carried("accelerate", str(path), None, "it is incomplete, and so is every other one")
    else:
        yield Carried("accelerate", str(path), step)


def _ray(folder: Path) -> Iterator[Carried]:
    """Yield what the newest checkpoint of a Ray Train run holds; Ray names checkpoints by the time of their report."""
    path = max((each for each in folder.glob("**/checkpoint_*") if _is_rays(each)), default=None)
    if path is not None:
        state = read_state(path)
        text = state.get("holdfast") if isinstance(state, dict) else None
        yield Carried("ray", str(path), _step(_at(json.loads(text), "stream")) if isinstance(text, str) else None)


def _is_rays(path: Path) -> bool:
    """Return whether a folder is a checkpoint kept by Ray Train, which lists its checkpoints beside them."""
    return path.is_dir() and (path.parent / "checkpoint_manager_snapshot.json").exists()


def _newest(paths: Iterable[Path]) -> Path | None:
    return max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)


def _load(path: Path) -> Any:
    """Return what ``torch.save`` wrote, without running anything in it."""
    import torch

    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _at(found: Any, *names: str) -> Any:
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _step(stream: Any) -> int | None:
    """Return the position of a stream state; None if it is not one."""
    step = _at(stream, "step")
    return step if isinstance(step, int) and "fingerprint" in stream else None
