"""``holdfast inspect PATH``: the content of a checkpoint, a stream state or training data, as a table.

The first entry of ``INSPECTORS`` whose predicate is true for the path shows it; a new kind of file is one more entry.
Only checkpoints need torch; states and data are inspected without it.
"""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from holdfast.cli.console import printable, table_console, working
from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.cli.paths import check_path
from holdfast.errors import ConfigError, HoldfastError

__all__ = ["INSPECTORS", "Asked", "Inspector", "register"]

EXAMPLES = examples(
    "holdfast inspect runs/exp7",
    "holdfast inspect runs/exp7/checkpoints/step-00001000",
    "holdfast inspect state/",
    "holdfast inspect 'shards/*.tar' --json",
    "holdfast inspect tokens.bin --seq-len 2048 --dtype uint16",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The user's request: a path, glob or URL, and options for some kinds of data."""

    name: str
    as_json: bool
    trusted: bool
    seq_len: int | None
    dtype: str
    header_bytes: int
    split: str | None

    @property
    def path(self) -> Path:
        """The name as a local path."""
        return Path(self.name)


class Inspector(NamedTuple):
    """One kind of thing that can be inspected."""

    kind: str
    matches: Callable[[Asked], bool]
    show: Callable[[Asked], None]


def _is_checkpoint(asked: Asked) -> bool:
    if not any(name.endswith((".metadata", ".safetensors")) for name in _names(asked.path)):
        return False  # not a checkpoint of any layout: torch is not loaded for anything else
    from holdfast.checkpoint.metadata_files import is_checkpoint

    return is_checkpoint(asked.path)


def _show_checkpoint(asked: Asked) -> None:
    from holdfast.checkpoint import summarise_checkpoint

    summary = summarise_checkpoint(asked.path, trusted=asked.trusted)
    streams = _streams_in(asked.path) if summary.layout == "torch" else {}
    if asked.as_json:
        told = {**dataclasses.asdict(summary), "bytes": summary.bytes, "streams": streams}
        print_json(told, indent=2)
        return
    from rich.markup import escape
    from rich.table import Table

    console = table_console()
    table = Table("tensor", "dtype", "shape", title=escape(f"{summary.path} ({summary.layout})"))
    table.add_column("bytes", justify="right")
    table.add_column("parts", justify="right")
    table.add_column("files")
    for tensor in summary.tensors:
        shape = " × ".join(map(str, tensor.shape)) or "scalar"
        files = escape(printable(tensor.files[0])) if len(tensor.files) == 1 else f"{len(tensor.files)} files"
        name = escape(printable(tensor.name))
        table.add_row(name, tensor.dtype, shape, f"{tensor.bytes:,}", str(tensor.chunks), files)
    for name in summary.objects:
        table.add_row(escape(printable(name)), "object", "", "", "", "")
    console.print(table)
    missing = [name for name, size in summary.files if size is None]
    on_disk = sum(size or 0 for _, size in summary.files)
    console.print(
        f"{len(summary.tensors)} tensors, {summary.bytes:,} bytes; {len(summary.objects)} objects; "
        f"{len(summary.files)} files, {on_disk:,} bytes on disk"
    )
    if missing:
        console.print(f"[bold red]missing files:[/] {escape(printable(', '.join(missing)))}")
    for key, stream in streams.items():
        console.print(escape(printable(f"{key}: {_standing(stream)}")))


def _streams_in(folder: Path) -> dict[str, dict[str, Any]]:
    from holdfast.cli.find_state import states_in_checkpoint
    from holdfast.cli.inspect_state import describe_state

    try:
        return {key: describe_state(state, folder) for key, state in states_in_checkpoint(folder).items()}
    except HoldfastError as error:
        typer.echo(f"the loader states in the checkpoint cannot be read: {error}", err=True)
        return {}


def _standing(stream: dict[str, Any]) -> str:
    """Describe the position of a stream, in one line."""
    ends = "endless" if stream["epochs"] is None else f"of {stream['epochs']} epochs"
    return (
        f"stream state saved {stream['saved']}: next step {stream['step']:,}, epoch {stream['epoch']} ({ends}), "
        f"position {stream['position']:,}, seed {stream['shuffle_seed']}, partition {stream['partition']}"
    )


def _is_stream_state(asked: Asked) -> bool:
    from holdfast.cli.inspect_state import is_state

    return is_state(asked.path)


def _show_stream_state(asked: Asked) -> None:
    from holdfast.cli.inspect_state import describe_state
    from holdfast.stream.state_files import load_state

    told = describe_state(load_state(asked.path), asked.path)
    if asked.as_json:
        print_json(told, indent=2)
        return
    from rich.markup import escape
    from rich.table import Table

    console = table_console()
    console.print(_standing(told))
    sources = Table("source", "samples", "seen", "epoch", "place in it", "fingerprint", title="sources")
    for source in told["sources"]:
        shown = ("name", "length", "samples", "epoch", "place", "fingerprint")
        sources.add_row(*(escape(str(source.get(name, ""))) for name in shown))
    console.print(sources)
    segments = Table("from step", "ranks", "global batch", "skips in force", title="segments")
    for segment in told["segments"]:
        segments.add_row(*map(str, segment.values()))
    console.print(segments)
    if told["samples_failed"]:
        console.print(f"{len(told['samples_failed'])} samples failed and were left out")


def _is_data(asked: Asked) -> bool:
    from holdfast.sources.open_data import ENDINGS, KINDS

    if any(kind.is_folder(asked.name) for kind in KINDS):
        return True
    if os.path.isdir(asked.name):
        return any(name.endswith(ENDINGS) for name in _names(asked.path))
    # A path that does not exist may be a glob, a URL or a typo; the search for files reports the latter.
    return asked.name.endswith(ENDINGS) or "://" in asked.name or not os.path.exists(asked.name)


def _show_data(asked: Asked) -> None:
    from holdfast.sources.describe import describe_data
    from holdfast.sources.open_data import TokenLayout

    layout = TokenLayout(length=asked.seq_len, dtype=asked.dtype, header_bytes=asked.header_bytes, split=asked.split)
    with working("reading"):
        summary = describe_data(asked.name, tokens=layout)
    if asked.as_json:
        print_json(dataclasses.asdict(summary), indent=2)
        return
    from rich.markup import escape
    from rich.table import Table

    console = table_console()
    console.print(
        f"{escape(summary.path)}: {summary.kind}, read by {summary.source}; {summary.samples:,} samples in "
        f"{summary.shards:,} shards, {summary.files:,} files, {summary.bytes:,} bytes; "
        f"fingerprint {summary.fingerprint}"
    )
    table = Table("column", "dtype", "row", title="columns")
    for column in summary.columns:
        row = "any length" if column.shape is None else " × ".join(map(str, column.shape)) or "scalar"
        table.add_row(escape(column.name), column.dtype, row)
    console.print(table)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # not a folder, or not readable
        return []


def _is_run(asked: Asked) -> bool:
    from holdfast.run.layout import is_run_folder

    return is_run_folder(asked.path)


def _show_run(asked: Asked) -> None:
    from holdfast.cli.runs import describe_run, show_runs

    with working("reading"):
        row = describe_run(asked.path)
    if asked.as_json:
        print_json(row, indent=2)
    else:
        show_runs(table_console(), [row])


INSPECTORS: tuple[Inspector, ...] = (
    Inspector("run", _is_run, _show_run),
    Inspector("checkpoint", _is_checkpoint, _show_checkpoint),
    Inspector("stream state", _is_stream_state, _show_stream_state),
    Inspector(
        "data (JSON lines, Parquet, Arrow, tar, token files, Megatron, MDS, LitData, TFRecord, Hugging Face, Lance)",
        _is_data,
        _show_data,
    ),
)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES)
    def inspect(
        path: Annotated[
            str,
            typer.Argument(
                metavar="PATH",
                help="A run, a checkpoint's folder, a stream state, or data: a file, folder, 'glob' or URL.",
            ),
        ],
        as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
        trusted: bool = typer.Option(
            False, "--trusted", help="Unpickle metadata that names custom classes: only for files you made."
        ),
        seq_len: Annotated[
            int | None, typer.Option(help="Token files and chunks: tokens per sequence.", show_default=False)
        ] = None,
        dtype: Annotated[str, typer.Option(help="Token files: data type of a token.")] = "uint16",
        header_bytes: Annotated[int, typer.Option(help="Token files: bytes before the first token.")] = 0,
        split: Annotated[
            str | None, typer.Option(help="Hugging Face folders: the split to read.", show_default=False)
        ] = None,
    ) -> None:
        """Show the content of a run, a checkpoint or data, or the position of a stream."""
        if "://" not in path and not glob.has_magic(path):
            check_path(path)
        asked = Asked(
            name=path,
            as_json=as_json,
            trusted=trusted,
            seq_len=seq_len,
            dtype=dtype,
            header_bytes=header_bytes,
            split=split,
        )
        for inspector in INSPECTORS:
            if inspector.matches(asked):
                inspector.show(asked)
                return
        known = ", ".join(inspector.kind for inspector in INSPECTORS)
        raise ConfigError(
            "unrecognised path",
            path=path,
            hint=f"it can inspect: {known}; a checkpoint is a folder with a .metadata file or *.safetensors files",
        )
