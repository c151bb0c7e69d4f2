"""A path given by the user: a file, one run spread over several files, or a folder of runs. A note says which."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from holdfast.debug.ingestion.detection import default_formats, read_file
from holdfast.debug.ingestion.formats.mlflow import is_mlflow_run, read_mlflow_run
from holdfast.debug.ingestion.formats.run_folder import is_run_folder, read_run_folder
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.names import plain
from holdfast.debug.ingestion.run_log import RunLog, merge_run_logs
from holdfast.errors import RunLogError, UnreadableLogError

__all__ = ["read_path"]

# Never logs, and often large: weights, archives, images, code.
_SKIPPED = frozenset(
    (".pt", ".pth", ".bin", ".safetensors", ".ckpt", ".distcp", ".onnx", ".h5", ".keras", ".npz", ".npy", ".zip",
    ".tar",  ".png", ".jpg", ".jpeg", ".gif", ".pdf", ".svg", ".py", ".pyc", ".so", ".html", ".parquet", ".arrow",
    ".lock",  ".ipynb", ".yaml", ".yml", ".toml", ".sh", ".model", ".vocab", ".css", ".js")
)  # fmt: skip
_SKIPPED_NAMES = frozenset(
    ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
     "vocab.json", "added_tokens.json", "wandb-metadata.json", "requirements.txt", "conda-environment.yaml",
     "readme.md", "adapter_config.json", "all_results.json", "train_results.json", "eval_results.json", "index.md",
     "license", "wandb-summary.json", "debug.log", "debug-internal.log", "hparams.yaml", "merges.txt", "vocab.txt")
)  # fmt: skip
_CHECKPOINT = re.compile(r"^(?:checkpoint|ckpt|step|global_step)[-_]?(\d+)$")
_RANK = re.compile(
    r"(?:rank|replica|worker|gpu|dump|proc|process|node)[_\-.]?\d+|_\d+$|[_\-.]\d{1,6}(?=\.[a-z]+$)", re.I
)
# Usual names of a run's files; two of these in one folder belong together.
_USUAL = re.compile(
    r"^(?:metrics\.csv|trainer_state\.json|trainer_log\.jsonl|events\.out\.tfevents\..*|run-.*\.wandb|output\.log|scalars\.json"
    r"|std(?:out|err)(?:\.\w+)?|(?:train|training|log|history|metrics|run)(?:_log)?\.(?:log|txt|csv|json|jsonl))$",
    re.IGNORECASE,
)
# Formats in which a run writes one file per rank.
_BY_RANK = frozenset(("flight-recorder", "parameter-hashes"))


def read_path(
    path: Path,
    limits: Limits | None = None,
    formats: list[LogFormat] | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> list[RunLog]:
    """Read every run at ``path``; ``progress`` is called with the number of bytes read.

    Raises:
        UnreadableLogError: nothing there can be read as a log.
    """
    limits = limits or Limits()
    if path.is_dir():
        return _read_folder(path, limits, formats or default_formats(limits), progress)
    if not path.exists():
        raise UnreadableLogError("the file or folder does not exist", hint="check the path", file=str(path))
    if not path.is_file():
        raise UnreadableLogError("the path is neither a file nor a folder", hint="check the path", file=str(path))
    return read_file(path, limits, formats, progress=progress).runs()


def _read_folder(
    root: Path, limits: Limits, formats: list[LogFormat], progress: Callable[[int], None] | None
) -> list[RunLog]:
    runs: dict[Path, list[RunLog]] = {}
    left_out = 0
    damaged: list[str] = []
    for folder, files in _walk(root, limits):
        if is_run_folder(folder):
            try:
                log = _quietly(partial(read_run_folder, folder, limits))
            except RunLogError as error:
                if folder == root:
                    raise
                damaged.append(f"the log of {folder} cannot be read: {error.message}")
                continue
            if log is not None:
                runs.setdefault(folder, []).append(log)
            left_out += log is None
            continue
        if is_mlflow_run(folder):
            log = _quietly(partial(read_mlflow_run, folder, limits))
            if log is not None:
                runs.setdefault(folder, []).append(log)
            left_out += log is None
            continue
        for file in files:
            log = _quietly(partial(read_file, file, limits, formats, progress=progress))
            if log is not None:
                runs.setdefault(_home(folder), []).append(log)
            left_out += log is None
    # Tables of numbers without a known metric (summaries, references) are often next to logs but are not logs.
    telling = {folder: [log for log in found if _tells(log)] for folder, found in runs.items()}
    if any(telling.values()):
        runs = {folder: found for folder, found in telling.items() if found}
    logs = [log for folder, found in runs.items() for log in _split_into_runs(folder, found)]
    if not logs:
        raise UnreadableLogError(
            damaged[0] if damaged else f"the folder contains no training log ({left_out} files were checked)",
            hint="pass a log file, or a folder with one; see docs/log_formats.md",
            file=str(root),
        )
    what = f"the folder contains {len(logs)} runs" if len(logs) > 1 else "the folder is read as one run"
    return [log.with_notes(what, *damaged) for log in logs]


def _quietly(read: Callable[[], RunLog]) -> RunLog | None:
    """Read a file of a folder; return None for the many files that are not logs."""
    try:
        return read()
    except UnreadableLogError:
        return None


def _tells(log: RunLog) -> bool:
    return any(signal.kind is not None for signal in log.signals)


def _walk(root: Path, limits: Limits) -> Iterator[tuple[Path, list[Path]]]:
    seen = 0
    for name, folders, files in os.walk(root, followlinks=False):
        folder = Path(name)
        depth = len(folder.relative_to(root).parts)
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and f not in ("__pycache__", "node_modules", "code")
        )
        if depth >= limits.depth or is_mlflow_run(folder) or is_run_folder(folder):
            folders[:] = []
        # Of a Trainer's checkpoints only the newest is read: its history includes the older ones.
        checkpoints = sorted((f for f in folders if _CHECKPOINT.match(f)), key=lambda f: int(_CHECKPOINT.match(f)[1]))  # type: ignore[index]
        if (folder / "trainer_state.json").is_file() or (folder / "trainer_log.jsonl").is_file():
            checkpoints.append("")
        folders[:] = [f for f in folders if f not in checkpoints[:-1]]
        kept = []
        for file in sorted(files):
            path = folder / file
            seen += 1
            if seen > limits.files:
                return
            if file.startswith(".") or file.lower() in _SKIPPED_NAMES or path.suffix.lower() in _SKIPPED:
                continue
            if path.is_symlink() and not path.exists():
                continue
            kept.append(path)
        yield folder, kept


def _home(folder: Path) -> Path:
    """Return the folder to which a file's run belongs: for a checkpoint, ``files`` or ``logs``, its parent."""
    while _CHECKPOINT.match(folder.name) or folder.name in ("files", "logs", "vis_data", "tensorboard", "tb_logs"):
        folder = folder.parent
    return folder


def _split_into_runs(folder: Path, logs: list[RunLog]) -> list[RunLog]:
    """Join files of different formats or ranks into one run; several of one format are separate runs."""
    divided = [run for log in logs if log.later for run in log.runs()]
    logs = [log for log in logs if not log.later]
    if divided:
        return [*divided, *(_split_into_runs(folder, logs) if logs else ())]
    by_format: dict[str, list[RunLog]] = {}
    for log in logs:
        by_format.setdefault(log.format, []).append(log)
    joined: list[RunLog] = []
    alone: list[RunLog] = []
    for name, group in by_format.items():
        if len(group) == 1:
            joined += group
        elif name in _BY_RANK or all(_RANK.search(Path(log.path).name) for log in group):
            merged = merge_run_logs(str(folder), _numbered(group))
            joined.append(
                replace(merged, notes=(*merged.notes, f"{len(group)} files, one per rank, were read together"))
            )
        elif name == "tensorboard":
            joined.append(merge_run_logs(str(folder), group))  # A restarted writer opens a new file for the same run.
        else:
            alone += group
    if alone and joined:
        # Free text next to structured logs is their console output; anything else is read by itself.
        return [*alone, *joined]
    if len(joined) > 1:
        return _joined(folder, joined)
    return [*alone, *(replace(log, path=str(folder)) if len(logs) > 1 else log for log in joined)]


def _joined(folder: Path, logs: list[RunLog]) -> list[RunLog]:
    """Join the files of the same run; the others stay separate."""
    groups: list[list[RunLog]] = []
    for log in logs:
        home = next((group for group in groups if any(_same_run(log, other) for other in group)), None)
        if home is None:
            groups.append([log])
        else:
            home.append(log)
    if len(groups) == 1:
        structured = [log for log in logs if log.format != "text"] or logs
        return [merge_run_logs(str(folder), structured)]
    return [merge_run_logs(group[0].path if len(group) == 1 else str(folder), group) for group in groups]


def _same_run(one: RunLog, other: RunLog) -> bool:
    """Return whether two files of a folder belong to one run.

    Both have a tool's usual name, or they contain the same series.
    """
    usual = [bool(_USUAL.search(Path(log.path).name)) or Path(log.path).is_dir() for log in (one, other)]
    if all(usual):
        return True
    series = {plain(signal.name): signal for signal in one.signals if signal.kind is not None and len(signal.values)}
    for signal in other.signals:
        twin = series.get(plain(signal.name))
        if twin is None or signal.kind is None or not len(signal.values):
            continue
        close = abs(twin.values[0] - signal.values[0]) <= 0.01 * abs(twin.values[0])
        if close and abs(twin.steps[-1] - signal.steps[-1]) <= 0.05 * max(1.0, twin.steps[-1]):
            return True
    return False


def _numbered(group: list[RunLog]) -> list[RunLog]:
    """Number the replicas of the signals of each file whose rank is not given."""
    ordered = sorted(group, key=lambda log: [int(n) for n in re.findall(r"\d+", Path(log.path).name)] or [0])
    named = {signal.replica for log in ordered for signal in log.signals}
    result = []
    for rank, log in enumerate(ordered):
        own = {signal.replica for signal in log.signals}
        if own == {None} or (len(named) < len(ordered) and log.format == "parameter-hashes"):
            log = replace(log, signals=tuple(replace(signal, replica=rank) for signal in log.signals))
        result.append(log)
    return result
