"""`holdfast verify CKPT`: check every record of a checkpoint; exit 0 sound, 1 damaged, 2 unusable."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]

EXIT_DAMAGED = 1
_MOST_LINES = 50


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command()
    def verify(
        path: Annotated[Path, typer.Argument(help="The checkpoint's folder.", show_default=False)],
        as_json: bool = typer.Option(False, "--json", help="Print the whole report as JSON."),
        workers: int | None = typer.Option(None, "--workers", min=1, help="Threads to read with."),
        trusted: bool = typer.Option(
            False, "--trusted", help="Unpickle metadata that names classes of its own: only for checkpoints you made."
        ),
    ) -> None:
        """Check every record of a checkpoint against its checksum.

        Exits 0 when it is sound, 1 when something is damaged (each damaged tensor is named), 2 when it cannot be read.
        """
        from holdfast.checkpoint import verify_checkpoint

        report = verify_checkpoint(path, num_workers=workers, trusted=trusted, progress=not as_json)
        if as_json:
            typer.echo(json.dumps(dataclasses.asdict(report), indent=2))
            raise typer.Exit(0 if report.sound else EXIT_DAMAGED)
        for entry in report.damaged:
            typer.echo(
                f"damaged  {entry.tensor}  {entry.file} at {entry.offset}, {entry.length} bytes: {entry.problem}"
            )
        for unchecked in report.unverified[:_MOST_LINES]:
            typer.echo(f"unverified  {unchecked.tensor}  {unchecked.file}: {unchecked.reason}")
        if len(report.unverified) > _MOST_LINES:
            typer.echo(f"unverified  … and {len(report.unverified) - _MOST_LINES} more (--json lists them)")
        for name in report.unsafe:
            typer.echo(f"unsafe  {name}: loads only with trusted=True, because unpickling it runs code")
        typer.echo(
            f"{'sound' if report.sound else 'DAMAGED'}: {report.items} items, {report.verified} verified, "
            f"{len(report.unverified)} without checksum, {len(report.damaged)} damaged; "
            f"{report.bytes_read / 1e9:.2f} GB in {report.seconds:.1f} s"
        )
        raise typer.Exit(0 if report.sound else EXIT_DAMAGED)
