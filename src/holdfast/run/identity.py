"""The owner of a folder: ``run.json`` names the run, its data and its model; any other is refused."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from typing import Any

from torch import nn

from holdfast.durable import write_whole
from holdfast.errors import RunFolderError, RunMismatchError, RunWriteError
from holdfast.foreign import parse_json, read_plain
from holdfast.run.layout import RunFolder
from holdfast.run.parameters import describe_model, differences
from holdfast.versioned import Format

__all__ = ["Identity", "describe_data"]

MARK = "run"
MAX_DIFFERENCES = 8


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies a run.

    Attributes:
        run: an id that no other run has.
        created: when it was created, for people.
        data: a description of the stream.
        model: name → shape and type of every parameter.
    """

    run: str
    created: str
    data: dict[str, Any]
    model: dict[str, str]

    @classmethod
    def new(cls, model: nn.Module, loader: Any) -> Identity:
        """Return the identity of a new run."""
        created = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return cls(secrets.token_hex(8), created, describe_data(loader), describe_model(model))

    @classmethod
    def read(cls, folder: RunFolder) -> Identity | None:
        """Return the identity stored in a folder; None if it has none yet.

        Raises:
            RunFolderError: the file is damaged, or the folder holds checkpoints or logs without it.
        """
        try:
            value = parse_json(read_plain(folder.identity, within=folder.root))
        except FileNotFoundError:
            strangers = [path.name for path in (folder.checkpoints, folder.logs) if path.exists()]
            if strangers:
                raise RunFolderError(
                    "the folder holds files of another program: there is no run.json",
                    folder=str(folder.root),
                    found=strangers,
                    hint="choose an empty folder, or pass fresh=True to move them aside",
                ) from None
            return None
        except (OSError, ValueError) as error:
            raise RunFolderError("run.json cannot be read", file=str(folder.identity)) from error
        if not isinstance(value, dict) or value.pop("holdfast", None) != MARK:
            raise RunFolderError("run.json was not written by a run", file=str(folder.identity))
        return IDENTITY.from_json(value)

    def write(self, folder: RunFolder) -> None:
        """Write ``run.json`` atomically."""
        value = {"holdfast": MARK, **IDENTITY.to_json(self)}
        try:
            folder.root.mkdir(parents=True, exist_ok=True)
            write_whole(folder.identity, json.dumps(value, indent=1))
        except OSError as error:
            raise RunWriteError(
                f"the run's folder cannot be written to: {error.strerror}", folder=str(folder.root)
            ) from error

    def refuse_others(self, other: Identity, folder: RunFolder) -> None:
        """Raise if the folder belongs to another model or other data; the message names what differs."""
        found = [f"model: {text}" for text in differences(self.model, other.model)]
        for name in sorted({*self.data, *other.data}):
            before, now = self.data.get(name), other.data.get(name)
            if before != now:
                found.append(f"data: {name} was {before!r} and is {now!r}")
        if found:
            more = f" and {len(found) - MAX_DIFFERENCES} more" if len(found) > MAX_DIFFERENCES else ""
            raise RunMismatchError(
                "the folder belongs to another run: " + "; ".join(found[:MAX_DIFFERENCES]) + more,
                folder=str(folder.root),
                differences=found,
                hint="choose another folder, or pass fresh=True to move the existing run aside",
            )


IDENTITY = Format(
    "run.json",
    Identity,
    error=RunFolderError,
    version_error=RunFolderError,
    hint="restore the file from a backup, or pass fresh=True to start over",
)


def describe_data(loader: Any) -> dict[str, Any]:
    """Return what identifies a stream: names, seed and sources, without reading any data."""
    order = getattr(loader, "order", None)
    if order is None or not hasattr(order, "to_json"):
        return {"loader": type(loader).__qualname__}
    value = order.to_json()
    return {
        "loader": type(loader).__qualname__,
        "name": value.get("name"),
        "seed": value.get("seed"),
        "sources": sorted(source["name"] for source in value.get("sources", ())),
    }
