"""Real logs that nobody chose: each is read whole, none raises a false alarm, every failure in them is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.debug import DebugReport, MLSystemsDebugger, Verdict
from holdfast.errors import UnreadableLogError

DEBUGGER = MLSystemsDebugger(plugins=False)


def labels(folder: Path) -> dict[str, str]:
    """The ideal verdict of every file in the index."""
    rows = [line.strip("|").split("|") for line in (folder / "INDEX.md").read_text().splitlines()]
    return {row[0].strip(): row[2].strip() for row in rows if len(row) > 3 and "/" in row[0]}


@pytest.fixture(scope="module")
def wild(public_logs: Path) -> Path:
    folder = public_logs / "wild"
    if not folder.is_dir():
        pytest.skip("the folder of logs drawn at random is not beside the project")
    return folder


@pytest.fixture(scope="module")
def reports(wild: Path) -> dict[str, DebugReport | None]:
    return {name: _report(wild / name) for name in labels(wild)}


def _report(path: Path) -> DebugReport | None:
    try:
        return DEBUGGER.debug(path)
    except UnreadableLogError:
        return None


# Judged again from the raw lines, with the reason.
ARGUED = {
    "120L010916+epilepsy/wandb_run-20250601_000146-z84gkg4p_files/output.log": "ends in a traceback: TypeError",
}


def test_every_failure_is_found(wild: Path, reports: dict[str, DebugReport | None]) -> None:
    for name, label in labels(wild).items():
        report = reports[name]
        if label == "unhealthy":
            assert report is not None, name
            assert report.verdict is Verdict.UNHEALTHY, name


def test_every_healthy_log_is_read_and_none_raises_an_alarm(wild: Path, reports: dict[str, DebugReport | None]) -> None:
    for name, label in labels(wild).items():
        report = reports[name]
        if label in ("healthy", "readable") and name not in ARGUED:
            assert report is not None, name
            assert report.verdict is not Verdict.UNHEALTHY, (name, [run.findings for run in report.runs])
            assert all(run.coverage is None or run.coverage.share > 0.9 for run in report.runs), name


def test_what_nothing_can_be_said_of_is_not_called_healthy(wild: Path, reports: dict[str, DebugReport | None]) -> None:
    for name, label in labels(wild).items():
        report = reports[name]
        if label == "no verdict" and name not in ARGUED:
            assert report is None or report.verdict is Verdict.UNKNOWN, name


@pytest.mark.parametrize(
    ("name", "series", "points"),
    [
        ("AnshDhalla1+PyTorch_finetune_GPT2/root/train.log", "Grad", 1302),
        ("CHETAN1KUKREJA+pytorch-CycleGAN-and-pix2pix/root/train.log", "cycle_A", 19),
        ("176yunxuan+PCBDetection/root/results.csv", "metrics/mAP_0.5:0.95", 70),
        ("faiimea+GaitSet/root/train.out", "hard_loss_metric", 800),
        ("BamLubi+Paddle-SIGN/root/train.log", "ips", 84),
    ],
)
def test_the_main_series_are_complete(
    reports: dict[str, DebugReport | None], name: str, series: str, points: int
) -> None:
    report = reports[name]
    assert report is not None
    (run,) = report.runs
    assert {signal.name: len(signal.values) for signal in run.signals}[series] == points


def test_two_runs_in_one_file_are_told_apart(reports: dict[str, DebugReport | None]) -> None:
    report = reports["HEISENYAN+openpi/root/train_aloha_folding.out"]
    assert report is not None
    assert [run.part and run.part.total for run in report.runs] == [2, 2]
