"""``holdfast convert SRC DST``: write data that holdfast reads as Parquet or MDS."""

from __future__ import annotations

import dataclasses
import glob
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.cli.paths import check_path

__all__ = ["register"]

MAX_PROCESSES = 1024
EXAMPLES = examples(
    "holdfast convert corpus_text_document.idx parquet/",
    "holdfast convert 'shards/*.tar' mds/ --to mds --workers 8",
)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES)
    def convert(
        source: Annotated[
            str, typer.Argument(metavar="SOURCE", help="Data: a file, folder, 'glob' or URL of any kind.")
        ],
        destination: Annotated[Path, typer.Argument(metavar="DESTINATION", help="The folder to write to.")],
        to: Annotated[str, typer.Option(help="parquet or mds.")] = "parquet",
        samples_per_shard: Annotated[int, typer.Option(min=1, help="Samples per shard.")] = 65_536,
        compression: Annotated[
            str, typer.Option(help="Compression of Parquet files: zstd, snappy, gzip or none.")
        ] = "zstd",
        workers: Annotated[int, typer.Option(min=1, max=MAX_PROCESSES, help="Processes to convert with.")] = 2,
        seq_len: Annotated[
            int | None, typer.Option(help="Token files and chunks: tokens per sequence.", show_default=False)
        ] = None,
        dtype: Annotated[str, typer.Option(help="Token files: data type of a token.")] = "uint16",
        header_bytes: Annotated[int, typer.Option(help="Token files: bytes before the first token.")] = 0,
        split: Annotated[
            str | None, typer.Option(help="Hugging Face folders: the split to read.", show_default=False)
        ] = None,
        as_json: bool = typer.Option(False, "--json", help="Print a summary as JSON."),
    ) -> None:
        """Write data of any kind as Parquet or MDS, in parallel.

        To continue a conversion that was stopped or killed, run the same command again.
        """
        from holdfast.sources.convert import convert as convert_data
        from holdfast.sources.open_data import TokenLayout

        if "://" not in source and not glob.has_magic(source):
            check_path(source)
        layout = TokenLayout(length=seq_len, dtype=dtype, header_bytes=header_bytes, split=split)
        with _bar(sys.stderr.isatty() and not as_json) as progress:
            report = convert_data(
                source,
                destination,
                to=to,  # type: ignore[arg-type]  # checked there, with an error that lists the choices
                samples_per_shard=samples_per_shard,
                compression=None if compression == "none" else compression,
                workers=workers,
                layout=layout,
                progress=progress,
            )
        if as_json:
            print_json(dataclasses.asdict(report), indent=2)
            return
        left = report.shards - report.written
        typer.echo(
            f"{report.samples:,} samples of {report.source} ({report.kind}) in {report.shards:,} shards, "
            f"{report.bytes:,} bytes, in {report.destination}" + (f"; {left:,} already existed" if left else "")
        )


@contextmanager
def _bar(shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on a terminal, and none in a pipe."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("shards", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
