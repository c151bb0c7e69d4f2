"""``holdfast doctor``: what is installed, whether trainers resume exactly, and how fast the checkpoint disk is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.console import working
from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.cli.paths import existing_folder

__all__ = ["register"]

EXAMPLES = examples(
    "holdfast doctor",
    "# stops and resumes a tiny run under each trainer",
    "holdfast doctor --try",
    "# a trainer's output: does its checkpoint include the stream?",
    "holdfast doctor out",
    exit_codes="0 nothing is broken, 1 something needs attention, 2 unusable input.",
)

PACKAGES = ("torch", "numpy", "pyarrow", "fsspec", "zlib-ng", "datasets", "s3fs", "redis")
# Trainer -> how to make its runs resume exactly. A test runs each with the version pinned in constraints.txt.
TRAINERS = {
    "transformers": "trainer.add_callback(holdfast.integrations.transformers.HoldfastCallback(loader))",
    "lightning": "Trainer(callbacks=[holdfast.integrations.lightning.HoldfastCallback()])",
    "accelerate": "holdfast.integrations.accelerate.prepare(accelerator, loader)",
    "trl": "trainer.add_callback(holdfast.integrations.transformers.HoldfastCallback(loader))",
    "ray": "holdfast.integrations.ray_train.prepare(loader)",
}
PROBE_BYTES = 64 << 20
"""Bytes written and flushed to measure a disk: enough for a rate, and only seconds of work for a slow disk."""
SLOW_BYTES_PER_SECOND = 100e6
"""Below this rate, a checkpoint of 10 GB takes longer than a minute and a half."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES)
    def doctor(
        folder: Annotated[
            Path | None,
            typer.Argument(
                metavar="FOLDER", callback=existing_folder, help="The checkpoint folder, whose disk is measured."
            ),
        ] = None,
        try_out: Annotated[
            bool, typer.Option("--try", help="Train a tiny model under each trainer, stop, resume, and compare.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    ) -> None:
        """Show what is installed, whether trainers resume exactly here, and how fast the checkpoint disk is."""
        found = examine(folder, try_out=try_out)
        if as_json:
            print_json(found, indent=2)
        else:
            _print(found)
        raise typer.Exit(1 if found["advice"] else 0)


def examine(folder: Path | None, *, try_out: bool = False) -> dict[str, Any]:
    """Return what is installed and what needs attention."""
    import platform

    from holdfast import __version__

    if try_out:
        import torch  # noqa: F401 - trainers are tried with it: without it the command says so, as every other does

    versions = {name: _version(name) for name in PACKAGES}
    trainers = {name: _version(name) for name in TRAINERS}
    advice = []
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
    if try_out:
        _try_trainers(found["trainers"], advice)
    if folder is not None:
        found["disk"] = _measure(folder)
        found["checkpoints"] = _look_into(folder, advice)
        rate = found["disk"]["write_bytes_per_second"]
        if rate < SLOW_BYTES_PER_SECOND:
            advice.append(f"the disk of {folder} writes {rate / 1e6:.0f} MB/s: save asynchronously, or less often")
    return found


def _try_trainers(trainers: dict[str, Any], advice: list[str]) -> None:
    """Stop and resume a tiny run under each trainer that is installed."""
    from dataclasses import asdict

    from holdfast.integrations.trial import TRIALS, try_trainer

    for name in TRIALS:
        if trainers[name]["version"] is not None:
            with working(f"trying {name}"):
                trial = try_trainer(name)
            trainers[name]["tried"] = asdict(trial)
            if not trial.resumes_exactly:
                advice.append(f"{name} {trainers[name]['version']} does not resume exactly here: {trial.why}")


def _look_into(folder: Path, advice: list[str]) -> list[dict[str, Any]]:
    """Check whether the newest checkpoint of each trainer in the folder includes the stream state."""
    from dataclasses import asdict

    from holdfast.integrations.carried import carried_in

    found = carried_in(folder)
    for each in found:
        if each.fault:
            advice.append(f"{each.checkpoint}: {each.fault}; a run resumed here may start over or fail")
        elif each.batches is None:
            advice.append(
                f"{each.checkpoint} holds no stream state: a run resumed from it would repeat data (save with"
                f" {TRAINERS[each.trainer]})"
            )
    return [asdict(each) for each in found]


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _measure(folder: Path) -> dict[str, Any]:
    """Write a file, flush it, and return how fast that was and how much space is left."""
    import os
    import shutil
    import tempfile
    import time

    from holdfast.errors import ConfigError

    try:
        room = shutil.disk_usage(folder).free
        size = min(PROBE_BYTES, room // 4)
        block = os.urandom(1 << 20)  # a disk that compresses would look too fast with zeros
        with tempfile.TemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            for _ in range(max(1, size >> 20)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            seconds = time.perf_counter() - began
    except OSError as error:
        raise ConfigError(
            f"the folder cannot be written to: {error.strerror}", folder=str(folder), hint="pass the checkpoint folder"
        ) from error
    return {"folder": str(folder), "write_bytes_per_second": max(1, size >> 20) * 2**20 / seconds, "free_bytes": room}


def _print(found: dict[str, Any]) -> None:
    typer.echo(f"holdfast {found['holdfast']}, Python {found['python']}, {found['platform']}")
    for name, version in found["packages"].items():
        typer.echo(f"  {name:<14} {version or 'not installed'}")
    typer.echo("trainers")
    is_tried = any("tried" in trainer for trainer in found["trainers"].values())
    for name, trainer in found["trainers"].items():
        if trainer["version"] is None:
            typer.echo(f"  {name:<14} not installed")
        else:
            shown = _outcome(trainer.get("tried"), is_tried=is_tried)
            typer.echo(f"  {name:<14} {trainer['version']}{shown}: resumes with {trainer['resumes_exactly_with']}")
    if "disk" in found:
        disk = found["disk"]
        rate, room = disk["write_bytes_per_second"] / 1e6, disk["free_bytes"] / 1e9
        typer.echo(f"disk of {disk['folder']}: writes {rate:,.0f} MB/s, {room:,.0f} GB free")
        if not found["checkpoints"]:
            typer.echo("no checkpoint of a trainer there, so nothing is known of how its runs resume")
    for each in found.get("checkpoints", ()):
        if each["batches"] is not None:
            typer.echo(f"{each['checkpoint']} resumes exactly, after {each['batches']:,} batches")
    for text in found["advice"]:
        typer.echo(f"! {text}")
    if not found["advice"]:
        untried = "" if is_tried else "; --try stops and resumes a tiny run under each trainer, to be sure"
        typer.echo(f"nothing needs attention{untried}")
    if found["packages"]["torch"] is None:
        typer.echo("torch is not installed: streams, checkpoints and runs need it (pip install 'holdfast[torch]')")


def _outcome(tried: dict[str, Any] | None, *, is_tried: bool) -> str:
    if tried is None:
        return ", not tried (it needs a cluster)" if is_tried else ""
    return ", tried here: exact" if tried["resumes_exactly"] else ", tried here: NOT exact"
