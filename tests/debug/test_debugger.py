from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.debug import (
    BaseDetector,
    BaseIngestor,
    BaseSignalExtractor,
    Detection,
    DetectionContext,
    DetectionResult,
    Evidence,
    Failure,
    GradientSignalExtractor,
    MLSystemsDebugger,
    Reporter,
    ReportFormat,
    Severity,
    Signal,
    Verdict,
)
from holdfast.debug import plugins as plugins_module
from holdfast.debug.online import OnlineDebugger
from holdfast.debug.routing import Router
from holdfast.errors import ConfigError, UnreadableLogError


class Spy(BaseDetector):
    def __init__(self, name: str, kinds: frozenset[str], *, finds: bool = False, breaks: bool = False) -> None:
        self._name, self._kinds, self._finds, self._breaks = name, kinds, finds, breaks
        self.seen: list[list[str]] = []
        self.threads: set[str] = set()

    @property
    def name(self) -> str:
        return self._name

    def get_required_signals(self) -> frozenset[str]:
        return self._kinds

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        self.seen.append([signal.name for signal in signals])
        self.threads.add(threading.current_thread().name)
        if self._breaks:
            raise ZeroDivisionError("by a plug-in")
        evidence = (Evidence("loss", "is odd"),)
        found = Detection(Failure.SPIKE, Severity.WARNING, 0.9, 3.0, 4.0, evidence, signal="loss")
        return DetectionResult(self.name, (found,) if self._finds else ())


def records(count: int = 60) -> list[dict[str, float]]:
    return [{"step": n, "loss": 3 * np.exp(-n / 30) + 1, "lr": 0.1, "extra": 1.0} for n in range(count)]


def test_a_detector_gets_only_the_kinds_it_asked_for_and_is_not_run_without_them() -> None:
    loss, memory = Spy("a", frozenset(("loss", "lr"))), Spy("b", frozenset(("memory",)))
    MLSystemsDebugger(detectors=[loss, memory], plugins=False).debug(records())
    assert loss.seen == [["loss", "lr"]]
    assert memory.seen == []


def test_routes_are_worked_out_once_for_each_set_of_kinds() -> None:
    router = Router([Spy("a", frozenset(("loss",)))])
    signals = MLSystemsDebugger(plugins=False).read(records())[0].signals
    for _ in range(5):
        router.route(signals)
    assert router.cached_routes == 1


def test_detectors_run_on_threads_of_their_own() -> None:
    spies = [Spy(str(n), frozenset(("loss",))) for n in range(4)]
    MLSystemsDebugger(detectors=spies, workers=3, plugins=False).debug(records())
    assert all(name.startswith("holdfast-detector") for spy in spies for name in spy.threads)


def test_a_detector_that_breaks_is_said_and_healthy_is_not() -> None:
    (run,) = (
        MLSystemsDebugger(detectors=[Spy("bad", frozenset(("loss",)), breaks=True)], plugins=False)
        .debug(records())
        .runs
    )
    assert run.verdict is Verdict.UNKNOWN
    assert any("'bad' failed" in note and "by a plug-in" in note for note in run.notes)


def test_two_detectors_of_one_name_are_refused() -> None:
    debugger = MLSystemsDebugger(detectors=[Spy("a", frozenset(("loss",)))], plugins=False)
    with pytest.raises(ConfigError, match="same name"):
        debugger.add_detector(Spy("a", frozenset(("loss",))))


def test_an_added_detector_is_run() -> None:
    debugger = MLSystemsDebugger(detectors=[], plugins=False)
    assert debugger.debug(records()).verdict is Verdict.HEALTHY
    debugger.add_detector(Spy("new", frozenset(("loss",)), finds=True))
    assert debugger.debug(records()).verdict is Verdict.UNHEALTHY


class Shout(BaseIngestor):
    @property
    def name(self) -> str:
        return "shout"

    def can_ingest(self, source: Any) -> float:
        return 1.0 if source == "SHOUT" else 0.0

    def ingest(self, source: Any) -> list[Signal]:
        return [Signal("loss", np.arange(9.0), np.linspace(3, 1, 9), metadata={"kind": "loss"})]


def test_an_added_ingestor_is_asked_first() -> None:
    debugger = MLSystemsDebugger(plugins=False)
    debugger.add_ingestor(Shout())
    assert debugger.debug("SHOUT").runs[0].format == "shout"


def test_an_added_extractor_reads_objects_that_are_no_logs() -> None:
    debugger = MLSystemsDebugger(plugins=False)
    debugger.add_signal_extractor(GradientSignalExtractor())
    log = debugger.read([{"step": n, "w": np.ones(3)} for n in range(5)])[0]
    assert {signal.kind for signal in log.signals} >= {"grad_norm"}


def test_parts_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="BaseDetector"):
        MLSystemsDebugger(plugins=False).add_detector(Shout())  # type: ignore[arg-type]


class Entry:
    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value, self._loaded = name, f"package:{name}", value

    def load(self) -> Any:
        if isinstance(self._loaded, Exception):
            raise self._loaded
        return self._loaded


class Extractor(BaseSignalExtractor):
    @property
    def name(self) -> str:
        return "x"

    def extract(self, raw_data: Any) -> list[Signal]:
        return []


def test_plug_ins_come_by_entry_point_and_broken_ones_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Entry("spy", lambda: Spy("plugged", frozenset(("loss",)), finds=True)),
        Entry("extractor", Extractor),
        Entry("broken", RuntimeError("no")),
        Entry("odd", lambda: 3),
    ]
    monkeypatch.setattr(plugins_module, "entry_points", lambda group: found if group == "holdfast.debug" else [])
    debugger = MLSystemsDebugger(detectors=[])
    (run,) = debugger.debug(records()).runs
    assert [detector.name for detector in debugger.detectors] == ["plugged"]
    assert run.verdict is Verdict.UNHEALTHY
    assert sum("was left out" in note for note in run.notes) == 2


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ([{"step": n, "speed": n} for n in range(9)], "no loss found"),
        ([{"step": n, "loss": 0.0, "x": n} for n in range(9)], "not collected"),
        ([{"step": 1, "loss": 2.0}], "1 points"),
    ],
)
def test_cannot_tell_is_a_verdict_with_a_reason(source: list[dict[str, float]], why: str) -> None:
    (run,) = MLSystemsDebugger(plugins=False).debug(source).runs
    assert run.verdict is Verdict.UNKNOWN
    assert run.reason is not None
    assert why in run.reason.text


def test_a_source_that_is_nothing_is_refused() -> None:
    with pytest.raises(UnreadableLogError, match="object"):
        MLSystemsDebugger(plugins=False).debug(object())


def test_a_failure_the_healthy_run_has_too_is_information_only() -> None:
    debugger = MLSystemsDebugger(detectors=[Spy("a", frozenset(("loss",)), finds=True)], plugins=False)
    (run,) = debugger.debug(records(), compare=records()).runs
    assert run.verdict is Verdict.HEALTHY
    assert run.findings[0].detection.severity is Severity.INFO


def test_comparison_says_where_a_run_leaves_the_healthy_one() -> None:
    bad = [{**row, "loss": row["loss"] + (2.0 if row["step"] >= 30 else 0.0)} for row in records()]
    (run,) = MLSystemsDebugger(detectors=[], plugins=False).debug(bad, compare=records()).runs
    assert any("leaves the healthy run at step 30 " in note for note in run.notes)


def test_a_followed_log_is_read_again_only_when_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = [f'{{"step": {n}, "loss": {3 - n / 50 if n < 30 else "NaN"}}}\n' for n in range(40)]
    path.write_text("".join(lines[:20]))
    follower = OnlineDebugger(MLSystemsDebugger(plugins=False), paths=[path])
    first = follower.look()
    assert first is not None
    assert follower.look() is None
    assert [line.split(":")[-1] for line in follower.news(first)] == [" healthy at step 19"]
    path.write_text("".join(lines))
    second = follower.look()
    assert second is not None
    news = list(follower.news(second))
    assert "unhealthy" in news[0]
    assert any("Not a number" in line and "step" in line for line in news)
    assert list(follower.news(second)) == []


def test_diagnosis_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch': raise ImportError('torch is blocked')\n"
        "sys.meta_path.insert(0, Block())\n"
        "from holdfast.debug import MLSystemsDebugger, Reporter, NumericalSignalExtractor, LogIngestor\n"
        "import numpy as np\n"
        "rows = [{'step': n, 'loss': 3 - n / 50 if n < 50 else float('nan')} for n in range(80)]\n"
        "report = MLSystemsDebugger().debug(rows)\n"
        "assert report.verdict.value == 'unhealthy', report.verdict\n"
        "[Reporter().render(report, form) for form in ('text', 'json', 'markdown', 'html', 'junit')]\n"
        "assert NumericalSignalExtractor().extract({'w': np.ones(3)})\n"
        "from holdfast.cli.main import build_app; build_app()\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_log_whose_metric_was_never_captured_cannot_be_judged(public_logs: Path) -> None:
    (run,) = MLSystemsDebugger(plugins=False).debug(public_logs / "ambiguous/qwen_all_zero_loss_and_grad.csv").runs
    assert run.verdict is Verdict.UNKNOWN


class PolicyDetector(BaseDetector):
    """Names a failure that holdfast does not know."""

    @property
    def name(self) -> str:
        return "policy"

    def get_required_signals(self) -> frozenset[str]:
        return frozenset(("loss",))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        failure = Failure("stuck_policy", title="Policy is stuck", rank=45, advice="Raise the entropy bonus.")
        return DetectionResult(self.name, (Detection(failure, Severity.CRITICAL, 0.9, 1.0, 2.0, ()),))


@pytest.mark.parametrize("form", list(ReportFormat))
def test_a_failure_of_ones_own_is_reported_in_every_format(form: ReportFormat) -> None:
    debugger = MLSystemsDebugger(plugins=False)
    debugger.add_detector(PolicyDetector())
    report = debugger.debug([{"step": n, "loss": 5.0 / (n + 1)} for n in range(200)])
    assert report.verdict is Verdict.UNHEALTHY
    text = Reporter().render(report, form)
    assert "stuck_policy" in text or "Policy is stuck" in text


def test_a_failure_survives_copying_and_compares_by_its_name() -> None:
    own = Failure("stuck_policy", title="Policy is stuck", rank=45, advice="Raise the entropy bonus.")
    again = copy.deepcopy(own)
    assert (again, again.title, again.rank, again.advice) == (own, own.title, own.rank, own.advice)
    assert Failure("nan") == Failure.NAN


def test_a_name_that_is_not_lower_case_words_is_refused() -> None:
    with pytest.raises(ConfigError, match="lower-case words"):
        Failure("Stuck Policy")
