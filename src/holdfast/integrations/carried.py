"""Whether the newest checkpoint of a trainer in a folder holds the stream's position; ``holdfast doctor`` asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.integrations.finished import newest_finished
from holdfast.integrations.trainer_checkpoints import newest_checkpoint

__all__ = ["Carried", "carried_in"]


@dataclass(frozen=True, slots=True)
class Carried:
    """What a trainer's newest checkpoint holds of the stream.

    Attributes:
        trainer: whose checkpoint it is.
        checkpoint: its path.
        batches: how many batches were trained on, as the stream counts them; None where it holds no stream state.
    """

    trainer: str
    checkpoint: str
    batches: int | None


def carried_in(folder: Path) -> list[Carried]:
    """Return what the newest checkpoint of each trainer in a folder holds; one that cannot be read is left out."""
    return [*_transformers(folder), *_lightning(folder), *_accelerate(folder)]


def _transformers(folder: Path) -> Iterator[Carried]:
    path = newest_checkpoint(folder)
    if path is not None:
        state = json.loads((Path(path) / "trainer_state.json").read_text(encoding="utf-8"))
        saved = _at(state, "stateful_callbacks", "HoldfastCallback", "attributes", "carried", "stream")
        yield Carried("transformers", path, _step(saved))


def _lightning(folder: Path) -> Iterator[Carried]:
    path = _newest(folder.glob("*.ckpt"))
    if path is not None and (state := _load(path)) is not None:
        loaders = _at(state, "loops", "fit_loop", "state_dict", "combined_loader")
        steps = [_step(loader) for loader in loaders] if isinstance(loaders, list) else []
        yield Carried("lightning", str(path), next((step for step in steps if step is not None), None))


def _accelerate(folder: Path) -> Iterator[Carried]:
    whole = newest_finished(folder) or newest_finished(folder / "checkpoints")
    path = Path(whole) if whole else _newest({file.parent for file in folder.glob("**/custom_checkpoint_*.pkl")})
    if path is None:
        return
    parts = [_load(file) for file in sorted(path.glob("custom_checkpoint_*.pkl"))]
    texts = [part["holdfast"] for part in parts if isinstance(part, dict) and isinstance(part.get("holdfast"), str)]
    yield Carried("accelerate", str(path), _step(_at(json.loads(texts[0]), "stream")) if texts else None)


def _newest(paths: Any) -> Path | None:
    return max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)


def _load(path: Path) -> Any:
    """Return what ``torch.save`` wrote, without running anything in it; None where that is not possible."""
    try:
        import torch

        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # torch is not installed, or the file holds more than data, or is torn
        return None


def _at(found: Any, *names: str) -> Any:
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _step(stream: Any) -> int | None:
    """Return the position of a stream state; None if it is not one."""
    step = _at(stream, "step")
    return step if isinstance(step, int) and "fingerprint" in stream else None
