"""The program of a run, for commands that replay its steps: a function that returns the run before it is started."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.paths import existing_file
from holdfast.errors import ConfigError, HoldfastError

if TYPE_CHECKING:
    from holdfast.run import Run

__all__ = ["PROGRAM_HELP", "load_program", "program_failed"]

PROGRAM_HELP = "FILE.py:FUNCTION that returns the run, not yet started; it may take the folder as its argument."


def load_program(program: str, folder: Path) -> Run:
    """Return the run that a program's function builds.

    Raises:
        ConfigError: the function does not exist, fails, or does not return a run in this folder.
    """
    from holdfast.run import Run

    name, _, function = program.rpartition(":")
    path = Path(name)
    if not name or not function.isidentifier():
        raise ConfigError("a program is given as FILE.py:FUNCTION", program=program)
    existing_file(path)
    module_name = f"_holdfast_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError("a program must be a Python file", file=name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.resolve().parent))  # as `python FILE.py` does
    try:
        spec.loader.exec_module(module)
        make = getattr(module, function, None)
        if not callable(make):
            raise ConfigError("the program has no such function", file=name, function=function)
        made = make(folder) if inspect.signature(make).parameters else make()
    except HoldfastError:
        raise
    except (Exception, SystemExit) as error:
        raise program_failed(program, error) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    if not isinstance(made, Run):
        raise ConfigError("the function must return a Run", function=function, found=type(made).__name__)
    if made.folder.root.resolve() != folder.resolve():
        raise ConfigError(
            "the program's run is in another folder",
            folder=str(made.folder.root),
            expected=str(folder),
            hint="let the function take the folder as its argument, or pass the folder of its run",
        )
    return made


_HINT = "a program's function takes no argument, or the folder, and returns a Run that is not yet started"


def program_failed(program: str, error: Exception | SystemExit, *, hint: str = _HINT) -> ConfigError:
    """Return the error that says where a program failed; its own exit code of 1 would mean something else."""
    file = Path(program.rpartition(":")[0]).resolve()
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file]
    if isinstance(error, SyntaxError) and error.filename is not None and Path(error.filename).resolve() == file:
        own = [error.lineno]  # a file that cannot be compiled has no frame of its own
    return ConfigError(
        # A program that exits, even with 0, has proven nothing.
        f"the program exited with code {error.code}"
        if isinstance(error, SystemExit)
        else f"the program failed: {type(error).__name__}: {error}",
        program=program,
        line=own[-1] if own else None,
        hint=hint,
    )
