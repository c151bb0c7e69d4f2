"""Hyperparameters as training scripts print them: ``Namespace(lr=20, …)``, ``--learning_rate 1e-5``, ``lr: 0.1``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.debug.ingestion.names import plain
from holdfast.debug.ingestion.rows import number_of

__all__ = ["canonical_config", "config_from_line", "parse_value"]

# Canonical name -> the names that frameworks use for it.
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "lr": ("lr", "learning_rate", "base_lr", "actor_learning_rate", "max_lr", "peak_lr", "lr0"),
    "clip": ("clip", "clip_norm", "max_grad_norm", "gradient_clip_val", "grad_clip", "clip_grad", "clip_grad_norm",
             "gradient_clipping", "max_norm"),
    "warmup_steps": ("warmup_steps", "num_warmup_steps", "warmup_updates", "warmup_iters", "lr_warmup_iters", "warmup",
                     "lr_warmup_steps"),
    "batch_size": ("batch_size", "train_batch_size", "per_device_train_batch_size", "global_batch_size", "bs"),
    "optimizer": ("optimizer", "optim", "optimizer_type", "opt"),
    "model": ("model", "model_name", "arch", "model_type", "model_name_or_path"),
    "epochs": ("epochs", "num_train_epochs", "max_epochs", "num_epochs", "max_epoch"),
    "weight_decay": ("weight_decay", "wd"),
    "world_size": ("world_size", "num_gpus", "n_gpu", "ngpus", "distributed_world_size"),
    "dropout": ("dropout",),
    "precision": ("precision", "dtype", "mixed_precision"),
}  # fmt: skip
_CANONICAL = {word: name for name, words in _ALIASES.items() for word in words}

_NAMESPACE = re.compile(r"\b(?:Namespace|Config|Args|TrainingArguments)\((.{1,60000})\)?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|[^,()\s]+)")
_FLAG = re.compile(r"--([A-Za-z][\w\-]*)(?:[= ]+(?!--)('[^']*'|\"[^\"]*\"|\S+))?")
_PAIR = re.compile(r"^\s*[\"']?([A-Za-z_][\w\-./ ]{0,40}?)[\"']?\s*[:=]\s*[\"']?([^\s\"',]{1,64})[\"']?,?\s*$")


def parse_value(text: str) -> Any:
    """Return the number, boolean or word that a setting's text denotes."""
    text = text.strip().strip("'\"")
    if text.startswith("[") and text.endswith("]") and "," not in text:
        text = text[1:-1].strip()  # A list with one element, as fairseq prints its rates.
    number = number_of(text)
    if number is not None and "," not in text:
        return int(number) if text.lstrip("+-").isdigit() else number
    return {"True": True, "False": False, "true": True, "false": False, "None": None}.get(text, text)


def canonical_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings under their own names, and also under canonical names if there are any."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and set(value) & {"value", "desc"}:
            value = value.get("value")
        if isinstance(value, (str, int, float, bool)) or value is None:
            result[str(name)] = value
    for name, value in list(result.items()):
        common = _CANONICAL.get(plain(name.split("/")[-1].split(".")[-1]))
        if common is not None and value is not None and common not in result:
            result[common] = value
    if result.get("fp16") is True and "precision" not in result:
        result["precision"] = "fp16"
    elif result.get("bf16") is True and "precision" not in result:
        result["precision"] = "bf16"
    return result


def config_from_line(line: str) -> dict[str, Any]:
    """Return the settings on one line of output; empty if it contains none."""
    namespace = _NAMESPACE.search(line) if "(" in line else None
    if namespace:
        return canonical_config({name: parse_value(value) for name, value in _ASSIGNMENT.findall(namespace.group(1))})
    if " --" in line and ("python" in line or "cmd" in line or "deepspeed" in line or "torchrun" in line):
        return canonical_config(
            {
                name.replace("-", "_"): parse_value(value) if value else True
                for name, value in _FLAG.findall(line[:20000])
            }
        )
    pair = _PAIR.match(line) if len(line) < 120 else None
    if pair and plain(pair.group(1)) in _CANONICAL:
        return canonical_config({plain(pair.group(1)): parse_value(pair.group(2))})
    return {}
