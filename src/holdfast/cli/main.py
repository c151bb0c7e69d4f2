"""The entry point: collects the commands and turns holdfast's errors into exit code 2 without a traceback.

A command lives in its own module of this package and offers ``register(app)``. Modules import the heavy parts of the
library inside the command function, so that ``holdfast --help`` stays fast.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import typer

from holdfast import __version__
from holdfast.errors import HoldfastError

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
# Click's, or the copy of it inside newer releases of Typer.
WRONG_USE: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")

# Package that may be missing -> the extra that installs it.
EXTRAS = {"torch": "torch", "zlib_ng": "torch", "datasets": "hf", "transformers": "hf", "accelerate": "hf"}


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit()


def build_app() -> typer.Typer:
    """Build the command line with every command registered."""
    app = typer.Typer(
        name="holdfast",
        help="Keep a PyTorch training run honest: data streams, metrics, checkpoints, and a debugger.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def main(
        version: bool = typer.Option(
            False, "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ) -> None:
        """Keep a PyTorch training run honest."""

    for name in COMMANDS:
        import_module(f"holdfast.cli.{name}").register(app)
    return app


def _explain(error: Any) -> None:
    """Say in one line what is wrong with the arguments and where to read more; without arguments, show the help."""
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        typer.echo(context.get_help())
        return
    command = "holdfast" if context is None else context.command_path
    message = " ".join(error.format_message().split())
    typer.echo(f"holdfast: {message[:1].lower()}{message[1:].rstrip('.')} — see {command} --help", err=True)


def run(arguments: list[str] | None = None) -> None:
    """Run the command line; exit with 2 and one clear line on bad input, with 130 on Ctrl-C."""
    command = typer.main.get_command(build_app())
    given = sys.argv[1:] if arguments is None else arguments
    if "" in given:  # as a path, it would be the current folder
        typer.echo("holdfast: an argument is empty — is a shell variable not set?", err=True)
        sys.exit(EXIT_UNUSABLE)
    try:
        code = command.main(args=arguments, prog_name="holdfast", standalone_mode=False)  # Ctrl-C comes out as 130
        sys.exit(code if isinstance(code, int) else 0)
    except WRONG_USE as error:
        _explain(error)
        sys.exit(EXIT_UNUSABLE)
    except HoldfastError as error:
        typer.echo(f"holdfast: {error}", err=True)
        sys.exit(EXIT_UNUSABLE)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        hint = f"pip install 'holdfast[{EXTRAS[missing]}]'"
        typer.echo(f"holdfast: this command needs {missing}, which is not installed — {hint}", err=True)
        sys.exit(EXIT_UNUSABLE)
    except BrokenPipeError:
        # The reader of the output (head, less) has exited, which is not an error.
        sys.stderr.close()
        sys.exit(0)
