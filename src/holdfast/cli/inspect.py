"""`holdfast inspect PATH`: what a checkpoint (or another file of a run) holds, as a table.

What a path is decides who shows it: the first entry of ``INSPECTORS`` whose predicate says yes. Another kind of file is
one more entry.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from holdfast.errors import ConfigError

__all__ = ["INSPECTORS", "Inspector", "register"]

_PIPE_WIDTH = 250


class Inspector(NamedTuple):
    """One kind of thing that can be inspected."""

    kind: str
    matches: Callable[[Path], bool]
    show: Callable[[Path, bool, bool], None]
    """Called with the path, whether to print JSON, and whether the user vouches for the content."""


def _is_checkpoint(path: Path) -> bool:
    if not os.path.isdir(path):
        return False  # keeps torch out of the way for everything else
    from holdfast.checkpoint.metadata_files import is_checkpoint

    return is_checkpoint(path)


def _show_checkpoint(path: Path, as_json: bool, trusted: bool) -> None:
    from holdfast.checkpoint import summarise_checkpoint

    summary = summarise_checkpoint(path, trusted=trusted)
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(summary), "bytes": summary.bytes}, indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)  # whoever reads the pipe wants whole names
    table = Table("tensor", "dtype", "shape", title=escape(f"{summary.path} ({summary.layout})"))
    table.add_column("bytes", justify="right")
    table.add_column("parts", justify="right")
    table.add_column("files")
    for tensor in summary.tensors:
        shape = " × ".join(map(str, tensor.shape)) or "scalar"
        files = tensor.files[0] if len(tensor.files) == 1 else f"{len(tensor.files)} files"
        table.add_row(escape(tensor.name), tensor.dtype, shape, f"{tensor.bytes:,}", str(tensor.chunks), files)
    for name in summary.objects:
        table.add_row(escape(name), "object", "", "", "", "")
    console.print(table)
    missing = [name for name, size in summary.files if size is None]
    on_disk = sum(size or 0 for _, size in summary.files)
    console.print(
        f"{len(summary.tensors)} tensors, {summary.bytes:,} bytes; {len(summary.objects)} objects; "
        f"{len(summary.files)} files, {on_disk:,} bytes on disk"
    )
    if missing:
        console.print(f"[bold red]missing files:[/] {escape(', '.join(missing))}")


def _is_stream_state(path: Path) -> bool:
    from holdfast.stream.inspect_state import is_state

    return is_state(path)


def _show_stream_state(path: Path, as_json: bool, trusted: bool) -> None:
    from holdfast.stream.inspect_state import describe_state

    told = describe_state(path)
    if as_json:
        typer.echo(json.dumps(told, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    ends = "without end" if told["epochs"] is None else f"of {told['epochs']} epochs"
    console.print(
        f"stream state saved {told['saved']}: next step {told['step']:,}, epoch {told['epoch']} ({ends}), "
        f"position {told['position']:,}, seed {told['shuffle_seed']}, partition {told['partition']}"
    )
    sources = Table("source", "samples", "seen", "epoch", "place in it", title="sources")
    for source in told["sources"]:
        sources.add_row(*(str(source.get(name, "")) for name in ("name", "length", "samples", "epoch", "place")))
    console.print(sources)
    segments = Table("from step", "ranks", "global batch", "skips in force", title="segments")
    for segment in told["segments"]:
        segments.add_row(*map(str, segment.values()))
    console.print(segments)
    if told["samples_failed"]:
        console.print(f"{len(told['samples_failed'])} samples failed and were left out")


INSPECTORS: tuple[Inspector, ...] = (
    Inspector("checkpoint", _is_checkpoint, _show_checkpoint),
    Inspector("stream state", _is_stream_state, _show_stream_state),
)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command()
    def inspect(
        path: Annotated[Path, typer.Argument(help="A checkpoint's folder, or a stream state.", show_default=False)],
        as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
        trusted: bool = typer.Option(
            False, "--trusted", help="Unpickle metadata that names classes of its own: only for files you made."
        ),
    ) -> None:
        """Show what a checkpoint holds (tensors, shapes, bytes, files), or where a stream stands."""
        if not os.path.exists(path):
            raise ConfigError("there is nothing at this path", path=str(path))
        for inspector in INSPECTORS:
            if inspector.matches(path):
                inspector.show(path, as_json, trusted)
                return
        known = ", ".join(inspector.kind for inspector in INSPECTORS)
        raise ConfigError(
            "holdfast does not know what this is",
            path=str(path),
            hint=f"it can inspect: {known}; a checkpoint is a folder with a .metadata file or *.safetensors files",
        )
