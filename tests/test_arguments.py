"""Arguments of another type, or out of range, are refused where they are passed, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import holdfast
from holdfast.debug import BaseDetector, MLSystemsDebugger
from holdfast.debug.online import OnlineDebugger
from holdfast.debug.types import DetectionContext, DetectionResult, Failure, Signal
from holdfast.errors import ConfigError, HoldfastError
from holdfast.metrics import JsonlSink
from holdfast.run import RollbackOptions, Run, RunOptions
from holdfast.run.policy import Action, Policy

SOURCE = holdfast.ArraySource({"x": np.arange(50)})


def dataset(**options: Any) -> holdfast.StreamDataset:
    return holdfast.StreamDataset(**{"source": SOURCE, "name": "w", **options})


def loader(**options: Any) -> holdfast.StreamingShardLoader:
    return holdfast.StreamingShardLoader(dataset(), holdfast.StreamingConfig(**{"batch_size": 4, **options}))


def run(folder: Any = "never", **options: Any) -> Run:
    return Run(folder, **{"model": torch.nn.Linear(1, 1), "loader": loader(), "monitor": False, **options})


REFUSED: dict[str, tuple[str, Callable[[], object]]] = {
    "a model that is a number": ("model", lambda: run(model=3)),
    "no model": ("model", lambda: run(model=None)),
    "models that are numbers": ("model", lambda: run(model={"a": 3})),
    "an empty folder": ("folder", lambda: run("")),
    "a folder with a NUL": ("folder", lambda: run("a\0b")),
    "a folder that is a number": ("folder", lambda: run(3)),
    "steps that are not a number": ("steps", lambda: run(steps=float("nan"))),
    "half a step": ("steps", lambda: run(steps=1.5)),
    "steps as text": ("steps", lambda: run(steps="a")),
    "negative steps": ("steps", lambda: run(steps=-1)),
    "no batch per step": ("accumulate", lambda: run(accumulate=0)),
    "options as a table": ("options", lambda: run(options={"save_every": 3})),
    "options that are a number": ("options", lambda: run(options=3)),
    "a step function that is a number": ("train_step", lambda: run(train_step=3)),
    "alerts that are numbers": ("alerts", lambda: run(alerts=[3])),
    "alerts that are one function": ("alerts", lambda: run(alerts=print)),
    "an optimizer that is a number": ("optimizer", lambda: run(optimizer=3)),
    "a rollback that is a number": ("rollback", lambda: run(rollback=3)),
    "a monitor that is a number": ("monitor", lambda: run(monitor=3)),
    "parts that are a number": ("parts", lambda: run(parts=3)),
    "findings that are a number": ("on_finding", lambda: run(on_finding=3)),
    "half a step between saves": ("save_every", lambda: RunOptions(save_every=1.5)),  # type: ignore[arg-type]
    "minutes that are not a number": ("save_minutes", lambda: RunOptions(save_minutes=float("nan"))),
    "a switch that is text": ("handle_signals", lambda: RunOptions(handle_signals="no")),  # type: ignore[arg-type]
    "a negative number of rollbacks": ("max_rollbacks", lambda: RollbackOptions(max_rollbacks=-1)),
    "a rate scaled by nothing": ("rate_scale", lambda: RollbackOptions(rate_scale=0.0)),
    "a transform that is a number": ("transform", lambda: dataset(transform=3)),
    "a metric transform that is a number": ("metric_transform", lambda: dataset(metric_transform=3)),
    "a name that is a number": ("name", lambda: dataset(name=3)),
    "a name with a NUL": ("name", lambda: dataset(name="a\0b")),
    "a source that is a number": ("source", lambda: dataset(source=3)),
    "a source that is a list": ("source", lambda: dataset(source=[1, 2, 3])),
    "a batch beyond any memory": ("batch_size", lambda: loader(batch_size=2**70)),
    "a sink with a NUL": ("path", lambda: JsonlSink("a\0b")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_error_names_the_argument_and_shows_the_value(case: str) -> None:
    name, make = REFUSED[case]
    with pytest.raises(ConfigError, match=rf"^{name} must be .* \[found=|^a key of {name}") as caught:
        make()
    assert not Path("never").exists()
    assert "found" in caught.value.where


def test_a_graphics_card_that_is_not_there_is_refused_when_the_loader_is_made() -> None:
    with pytest.raises(ConfigError, match="there is no such device"):
        loader(device="cuda:99")


def test_what_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for write in (
        lambda: loader().save(tmp_path / "file"),
        lambda: loader().save("a\0b"),
        lambda: JsonlSink(tmp_path / "file" / "x.jsonl"),
        lambda: JsonlSink(tmp_path),
    ):
        with pytest.raises(HoldfastError):
            write()


@pytest.mark.parametrize("state", [{}, None, "x", {"a": 1}])
def test_what_is_no_state_is_not_called_changed(state: Any) -> None:
    with pytest.raises(HoldfastError, match=r"this is not a stream state .* — pass what state_dict"):
        loader().load_state_dict(state)


class StuckPolicy(BaseDetector):
    """A detector of the user's own."""

    failure: ClassVar[Failure | None] = Failure("stuck_policy", title="Policy is stuck")

    @property
    def name(self) -> str:
        return "stuck"

    def get_required_signals(self) -> frozenset[str]:
        return frozenset({"reward"})

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        return DetectionResult(self.name, ())


class Undeclared(StuckPolicy):
    """One that does not say beforehand what it names."""

    failure = None


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("zzz", "known: "),
        ("spikes", "did you mean 'spike'?"),
        ("critcal", "did you mean 'critical'?"),
        ("nan/critcal", "did you mean 'critical'?"),
        ("nam/critical", "did you mean 'nan'?"),
        ("stuck_policy", "known: "),
        ("", "known: "),
    ],
)
def test_a_rule_for_a_failure_that_nothing_can_find_is_refused(key: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(monitor=True, on_finding={key: "rollback"})
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(hint)
    assert "nan" in caught.value.hint or "critical" in caught.value.hint


@pytest.mark.parametrize("key", ["nan", "spike/critical", "warning", "*", "hang", "crash", "stuck_policy"])
def test_rules_for_what_can_be_found_are_taken(key: str) -> None:
    debugger = OnlineDebugger(MLSystemsDebugger(detectors=[StuckPolicy()], plugins=False))
    run(monitor=debugger, on_finding={key: "rollback"})


def test_a_detector_that_does_not_say_what_it_names_leaves_the_names_open() -> None:
    assert Policy({"anything": "stop"}, detectors=[Undeclared()]).action("anything", "critical") is Action.STOP
