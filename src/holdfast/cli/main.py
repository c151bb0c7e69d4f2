"""The entry point: collects the commands, and turns every failure into one sentence and an exit code.

A command lives in its own module of this package and offers ``register(app)``. Modules import the heavy parts of the
library inside the command function, so that ``holdfast --help`` stays fast. This module imports even Typer late: an
interrupt during any import then ends as quietly as one during the work.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

__all__ = ["COMMANDS", "build_app", "run"]

# Modules of this package, in the order in which `holdfast --help` shows them.
COMMANDS = (
    "debug",
    "runs",
    "report",
    "serve",
    "doctor",
    "demo",
    "verify",
    "inspect",
    "convert",
    "samples",
    "when",
    "feedback",
    "calibrate",
    "simulate",
    "watch",
    "job",
    "replay",
    "blame",
    "prove",
    "audit",
    "bisect",
)

EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""The exit code of a program that SIGPIPE ended. Not 0, which would mean a healthy run, nor 1, which means findings."""


def build_app() -> typer.Typer:
    """Build the command line with every command registered."""
    import typer

    from holdfast import __version__

    def show_version(value: bool) -> None:
        if value:
            typer.echo(f"holdfast {__version__}")
            raise typer.Exit()

    app = typer.Typer(
        name="holdfast",
        help="Keep a PyTorch training run honest: data streams, metrics, checkpoints, and a debugger.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def main(
        version: bool = typer.Option(
            False, "--version", callback=show_version, is_eager=True, help="Print the version and exit."
        ),
    ) -> None:
        """Keep a PyTorch training run honest."""

    for name in COMMANDS:
        import_module(f"holdfast.cli.{name}").register(app)
    return app


def run(arguments: list[str] | None = None) -> None:
    """Run the command line; exit with 2 and one clear line on bad input, with 130 on Ctrl-C."""
    try:
        sys.exit(_run(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _run(arguments: list[str]) -> int:
    """Run one command and return its exit code; whatever it raises is reported here."""
    _open_missing_streams()
    try:
        if sys.stdout is None:
            raise OSError(errno.EBADF, "standard output is closed")
        _show_what_the_terminal_can()
        code = _answer(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of the output (head, less) has exited: no message needed
        _drop_output()
        return EXIT_BROKEN_PIPE
    except SystemExit as ended:
        # Typer and Rich exit with 1 if the pipe is broken, and 1 means findings.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        _drop_output()
        return EXIT_BROKEN_PIPE
    except Exception as error:
        from holdfast.cli.failure import explain

        failure = explain(error)
        if not failure.shown_already:
            failure.show(as_json=_asks_for_json(arguments))
        if _output_fails():
            _drop_output()
        return EXIT_UNUSABLE


def _answer(arguments: list[str]) -> int:
    import typer

    from holdfast.errors import ConfigError

    command = typer.main.get_command(build_app())
    if "" in arguments:  # as a path, it would be the current folder
        raise ConfigError("an argument is empty", hint="unset shell variable?")
    code = command.main(args=arguments, prog_name="holdfast", standalone_mode=False)  # Ctrl-C comes out as 130
    return code if isinstance(code, int) else 0


def _asks_for_json(arguments: list[str]) -> bool:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    values = [value for option, value in pairwise(options) if option in ("--format", "-f")]
    return "--json" in options or "--format=json" in options or "json" in values


def _open_missing_streams() -> None:
    """Open a substitute for each standard stream that the caller has closed."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the life of the process


def _show_what_the_terminal_can() -> None:
    """Print question marks for characters that the output's encoding lacks, such as that of a Latin-1 locale."""
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.encoding.lower().startswith("utf"):
        sys.stdout.reconfigure(errors="replace")


def _output_fails() -> bool:
    """Return whether there is something left to print that cannot be written."""
    if sys.stdout is None:
        return False
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return True
    return False


def _drop_output() -> None:
    """Let Python's own last flush succeed: it would print a second message and change the exit code."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
