"""`holdfast doctor`: what is installed here, whether a trainer will resume exactly, how fast the checkpoint disk is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["register"]

PACKAGES = ("torch", "numpy", "pyarrow", "fsspec", "zlib-ng", "datasets", "s3fs", "redis")
# Trainer -> how its runs resume exactly. A test runs each with the version that constraints.txt pins.
TRAINERS = {
    "transformers": "holdfast.integrations.transformers.attach(trainer, loader)",
    "lightning": "Trainer(callbacks=[holdfast.integrations.lightning.HoldfastCallback()])",
    "accelerate": "holdfast.integrations.accelerate.prepare(accelerator, loader)",
    "trl": "holdfast.integrations.transformers.attach(trainer, loader)",
    "ray": "holdfast.integrations.ray_train.prepare(loader)",
}
PROBE_BYTES = 64 << 20
"""Written and flushed to measure a disk: enough for a rate, little enough to be done in seconds on a slow one."""
SLOW_BYTES_PER_SECOND = 100e6
"""Below this a checkpoint of 10 GB takes longer than a minute and a half."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command()
    def doctor(
        folder: Annotated[
            Path | None, typer.Argument(help="The folder for checkpoints, to measure its disk.", show_default=False)
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
    ) -> None:
        """Say what is installed, whether trainers will resume exactly, and how fast the checkpoint disk is.

        Exits 0 when all is well, 1 when something needs attention.

        Examples:
            holdfast doctor

            holdfast doctor runs/exp7/checkpoints
        """
        import json

        found = examine(folder)
        if as_json:
            typer.echo(json.dumps(found, indent=2))
        else:
            _print(found)
        raise typer.Exit(1 if found["advice"] else 0)


def examine(folder: Path | None) -> dict[str, Any]:
    """Return what is installed and what needs attention."""
    import platform

    from holdfast import __version__

    versions = {name: _version(name) for name in PACKAGES}
    trainers = {name: _version(name) for name in TRAINERS}
    advice = []
    if versions["torch"] is None:
        advice.append("torch is not installed: streams, checkpoints and runs need it (pip install 'holdfast[torch]')")
    for name, version in trainers.items():
        if version is not None and versions["torch"] is None:
            advice.append(f"{name} is installed, but torch is not")
    found: dict[str, Any] = {
        "holdfast": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        "trainers": {
            name: {"version": version, "resumes_exactly_with": TRAINERS[name]} for name, version in trainers.items()
        },
        "advice": advice,
    }
    if folder is not None:
        found["disk"] = _measure(folder)
        rate = found["disk"]["write_bytes_per_second"]
        if rate < SLOW_BYTES_PER_SECOND:
            advice.append(f"the disk of {folder} writes {rate / 1e6:.0f} MB/s: save asynchronously, or less often")
    return found


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _measure(folder: Path) -> dict[str, Any]:
    """Write a file, flush it, and say how fast that was and how much room is left."""
    import os
    import shutil
    import tempfile
    import time

    from holdfast.errors import ConfigError

    try:
        room = shutil.disk_usage(folder).free
        size = min(PROBE_BYTES, room // 4)
        block = os.urandom(1 << 20)  # a disk that compresses would be flattered by zeros
        with tempfile.TemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            for _ in range(max(1, size >> 20)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            seconds = time.perf_counter() - began
    except OSError as error:
        raise ConfigError(
            f"the folder cannot be written to: {error.strerror}", folder=str(folder), hint="name the checkpoint folder"
        ) from error
    return {"folder": str(folder), "write_bytes_per_second": max(1, size >> 20) * 2**20 / seconds, "free_bytes": room}


def _print(found: dict[str, Any]) -> None:
    typer.echo(f"holdfast {found['holdfast']}, Python {found['python']}, {found['platform']}")
    for name, version in found["packages"].items():
        typer.echo(f"  {name:<14} {version or 'not installed'}")
    typer.echo("trainers")
    for name, trainer in found["trainers"].items():
        if trainer["version"] is None:
            typer.echo(f"  {name:<14} not installed")
        else:
            typer.echo(f"  {name:<14} {trainer['version']}: resumes exactly with {trainer['resumes_exactly_with']}")
    if "disk" in found:
        disk = found["disk"]
        rate, room = disk["write_bytes_per_second"] / 1e6, disk["free_bytes"] / 1e9
        typer.echo(f"disk of {disk['folder']}: writes {rate:,.0f} MB/s, {room:,.0f} GB free")
    for text in found["advice"]:
        typer.echo(f"! {text}")
    if not found["advice"]:
        typer.echo("nothing needs attention")
