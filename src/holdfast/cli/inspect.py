"""`holdfast inspect PATH`: what a checkpoint (or another file of a run) holds, as a table.

What a path is decides who shows it: the first entry of ``INSPECTORS`` whose predicate says yes. Another kind of file is
one more entry.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from holdfast.errors import ConfigError

__all__ = ["INSPECTORS", "Inspector", "register"]


class Inspector(NamedTuple):
    """One kind of thing that can be inspected."""

    kind: str
    matches: Callable[[Path], bool]
    show: Callable[[Path, bool, bool], None]
    """Called with the path, whether to print JSON, and whether the user vouches for the content."""


def _is_checkpoint(path: Path) -> bool:
    if not path.is_dir():
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
    from rich.table import Table

    console = Console()
    table = Table("tensor", "dtype", "shape", title=f"{summary.path} ({summary.layout})")
    table.add_column("bytes", justify="right")
    table.add_column("parts", justify="right")
    table.add_column("files")
    for tensor in summary.tensors:
        shape = " × ".join(map(str, tensor.shape)) or "scalar"
        files = tensor.files[0] if len(tensor.files) == 1 else f"{len(tensor.files)} files"
        table.add_row(tensor.name, tensor.dtype, shape, f"{tensor.bytes:,}", str(tensor.chunks), files)
    for name in summary.objects:
        table.add_row(name, "object", "", "", "", "")
    console.print(table)
    missing = [name for name, size in summary.files if size is None]
    on_disk = sum(size or 0 for _, size in summary.files)
    console.print(
        f"{len(summary.tensors)} tensors, {summary.bytes:,} bytes; {len(summary.objects)} objects; "
        f"{len(summary.files)} files, {on_disk:,} bytes on disk"
    )
    if missing:
        console.print(f"[bold red]missing files:[/] {', '.join(missing)}")


INSPECTORS: tuple[Inspector, ...] = (Inspector("checkpoint", _is_checkpoint, _show_checkpoint),)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command()
    def inspect(
        path: Annotated[Path, typer.Argument(help="A checkpoint's folder.", show_default=False)],
        as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
        trusted: bool = typer.Option(
            False, "--trusted", help="Unpickle metadata that names classes of its own: only for files you made."
        ),
    ) -> None:
        """Show what a checkpoint holds: tensors, shapes, dtypes, bytes and files."""
        if not path.exists():
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
