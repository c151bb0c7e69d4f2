"""``holdfast verify CKPT``: check every record of a checkpoint; exit 0 sound, 1 damaged, 2 unusable, 3 incomplete."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from holdfast.cli.console import printable
from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.cli.paths import existing_folder

__all__ = ["register"]

EXIT_CODES = {"sound": 0, "damaged": 1, "incomplete": 3}
"""Exit codes by verdict; 2 is for checkpoints that cannot be read at all."""
_MAX_LINES = 50
MAX_THREADS = 1024
EXAMPLES = examples(
    "holdfast verify runs/exp7/checkpoints/step-00001000",
    "holdfast verify checkpoint/ --require-manifest --json",
    exit_codes="0 sound, 1 damaged, 2 it cannot be read, 3 nothing is damaged, but the check is incomplete.",
)


def _folder_or_url(value: str) -> str:
    from holdfast.checkpoint.remote import is_url

    if not is_url(value):
        existing_folder(value)
    return value


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES)
    def verify(
        path: Annotated[
            str, typer.Argument(metavar="FOLDER", callback=_folder_or_url, help="The checkpoint's folder, or its URL.")
        ],
        as_json: bool = typer.Option(False, "--json", help="Print the whole report as JSON."),
        require_manifest: bool = typer.Option(
            False, "--require-manifest", help="Refuse a checkpoint that has no holdfast.json."
        ),
        workers: int | None = typer.Option(
            None, "--workers", min=1, max=MAX_THREADS, help="Number of threads to read with."
        ),
        trusted: bool = typer.Option(
            False, "--trusted", help="Unpickle metadata that names custom classes: only for checkpoints you made."
        ),
    ) -> None:
        """Check everything in a checkpoint that a load would use.

        Sound means that it loads, and that every byte was compared with a checksum. Each damaged tensor is named. The
        check is incomplete if there are no checksums, or objects that a load refuses.
        """
        from rich.filesize import decimal

        from holdfast.checkpoint import verify_checkpoint

        report = verify_checkpoint(
            path, num_workers=workers, trusted=trusted, require_manifest=require_manifest, progress=not as_json
        )
        if as_json:
            print_json(dataclasses.asdict(report), indent=2)
            raise typer.Exit(EXIT_CODES[report.verdict])
        for entry in report.damaged:
            place = f"{entry.file} at {entry.offset}, {entry.length} bytes"
            typer.echo(printable(f"damaged  {entry.tensor}  {place}: {entry.problem}"))
        for unchecked in report.unverified[:_MAX_LINES]:
            typer.echo(printable(f"unverified  {unchecked.tensor}  {unchecked.file}: {unchecked.reason}"))
        if len(report.unverified) > _MAX_LINES:
            typer.echo(f"unverified  … and {len(report.unverified) - _MAX_LINES} more (--json lists them)")
        for refused in report.unsafe:
            typer.echo(printable(f"refused  {refused.tensor}  {refused.file}: {refused.why}"))
        names = sorted({name for refused in report.unsafe for name in refused.names})
        if names:
            typer.echo(printable(f"to allow them: torch.serialization.add_safe_globals([{', '.join(names)}])"))
        verdict = report.verdict if report.sound else report.verdict.upper()
        typer.echo(
            f"{verdict}: {report.items} items{' in a manifest' if report.manifest else ''}, "
            f"{report.verified} verified, {len(report.unverified)} without checksum, {len(report.damaged)} damaged; "
            f"{decimal(report.bytes_read)} in {report.seconds:.2g} s"
        )
        raise typer.Exit(EXIT_CODES[report.verdict])
