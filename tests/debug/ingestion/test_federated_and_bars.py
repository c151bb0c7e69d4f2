"""Federated rounds of Flower, and the progress bars of object detectors whose header is in another file."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.debug import MLSystemsDebugger, Verdict
from holdfast.debug.ingestion.detection import read_file
from holdfast.debug.ingestion.run_log import RunLog

GREEN, END = "\x1b[92mINFO \x1b[0m:      ", "\n"
LOSSES = [2.3, 2.1, 1.9, 1.6, 1.4, 1.2, 1.1, 1.0]


def _read(folder: Path, text: str, name: str = "server.log") -> list[RunLog]:
    (folder / name).write_text(text, encoding="utf-8")
    log = read_file(folder / name)
    return [log, *log.later]


def _series(log: RunLog) -> dict[str, list[tuple[float, float]]]:
    return {s.name: list(zip(s.steps.tolist(), s.values.tolist(), strict=True)) for s in log.signals}


def _rounds() -> str:
    lines = ["[INIT]", "Starting evaluation of initial global parameters"]
    for number, loss in enumerate(LOSSES, 1):
        lines += [f"[ROUND {number}]", "configure_fit: strategy sampled 10 clients (out of 100)"]
        lines += [f"fit progress: ({number}, {loss}, {{'accuracy': {1 - loss / 3:.3f}}}, {number * 35.7})"]
    lines += ["[SUMMARY]", "Run finished 8 round(s) in 285.6s", "\tHistory (loss, distributed):"]
    lines += [f"\t\tround {number}: {loss + 0.1:.1f}" for number, loss in enumerate(LOSSES, 1)]
    lines += ["\tHistory (metrics, distributed, fit):"]
    points = [f"({number}, {loss + 0.2:.1f})" for number, loss in enumerate(LOSSES, 1)]
    lines += ["\t{'loss': [" + points[0] + ",", *(f"\t          {point}," for point in points[1:-1])]
    lines += [f"\t          {points[-1]}]}}"]
    return "".join(GREEN + line + END for line in lines)


def test_every_run_of_a_flower_server_is_read_with_what_its_summary_adds(tmp_path: Path) -> None:
    runs = _read(tmp_path, _rounds() * 2)
    assert len(runs) == 2
    for run in runs:
        series = _series(run)
        assert series["centralized loss"] == list(enumerate(LOSSES, 1))
        assert series["distributed loss"] == [(n, round(loss + 0.1, 1)) for n, loss in enumerate(LOSSES, 1)]
        assert series["train loss"] == [(n, round(loss + 0.2, 1)) for n, loss in enumerate(LOSSES, 1)]
        assert {signal.name: signal.kind for signal in run.signals}["centralized accuracy"] == "metric"


def test_the_lists_of_an_older_flower_server_are_read(tmp_path: Path) -> None:
    points = ", ".join(f"({number}, {loss})" for number, loss in enumerate(LOSSES, 1))
    head = "INFO flower 2022-03-01 12:00:01,123 | app.py:115 | app_fit: "
    (run,) = _read(
        tmp_path, f"{head}losses_distributed [{points}]\n{head}metrics_centralized {{'accuracy': [{points}]}}\n"
    )
    series = _series(run)
    assert series["distributed loss"] == series["centralized accuracy"] == list(enumerate(LOSSES, 1))


def test_the_bars_of_a_detector_give_its_losses_by_epoch_without_a_header(tmp_path: Path) -> None:
    def bar(epoch: int, done: int) -> str:
        share = f"{10 * done:3d}%|{'█' * done:<10}| {done}/10 [00:21<00:34,  3.05it/s]"
        losses = f"{9 / epoch + done:.3f}      {4 / epoch:.3f}      1.5"
        return f"\r      {epoch}/40      7.21G      {losses}     23    640: {share}"

    epochs = ["".join(bar(epoch, done) for done in range(11)) + "\n" for epoch in range(1, 41)]
    held_out = (
        "\r                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|██| 8/8\n"
    )
    (run,) = _read(tmp_path, held_out.join(epochs), "job.err")
    series = _series(run)
    assert [step for step, _ in series["train/box_loss"]] == list(range(1, 41))
    assert series["train/loss_2"][3] == (4.0, 1.0)
    assert {signal.kind for signal in run.signals} == {"loss"}


def test_a_number_may_follow_the_word_is_and_a_colon(tmp_path: Path) -> None:
    lines = [f"[{n % 4}/4] loss of epoch {n // 4} is : {3 / (n + 1)}\n" for n in range(24)]
    (run,) = _read(tmp_path, "".join(lines))
    assert [(signal.name, signal.kind, len(signal.values)) for signal in run.signals] == [("loss", "loss", 24)]


def test_a_sum_over_the_batches_of_an_epoch_is_read_at_its_end(tmp_path: Path) -> None:
    sums = [[(batch + 1) * 2.0 / (epoch + 1) for batch in range(40)] for epoch in range(3)]
    lines = [
        f"[{n}/40] running loss of epoch {epoch} is {v}\n" for epoch, own in enumerate(sums) for n, v in enumerate(own)
    ]
    (run,) = _read(tmp_path, "".join(lines))
    (loss,) = run.signals
    assert loss.values.tolist() == [own[-1] for own in sums]


def test_such_a_sum_is_read_at_the_end_of_its_epoch_if_the_rows_count_only_epochs(tmp_path: Path) -> None:
    sums = [[(batch + 1) * 0.05 / (epoch + 1) for batch in range(40)] for epoch in range(3)]
    rows = [f"{epoch},{value}" for epoch, own in enumerate(sums, 1) for value in own]
    (run,) = _read(tmp_path, "\n".join(["epoch,train_loss", *rows]))
    (loss,) = run.signals
    assert (loss.steps.tolist(), loss.values.tolist()) == ([1.0, 2.0, 3.0], [own[-1] for own in sums])


def _clients(mark: str) -> str:
    lines = []
    for number, loss in enumerate(LOSSES):
        lines.append(f"2026-04-29 09:5{number}:00,000 | INFO | Round {number + 1}")
        for client in range(10):
            own = loss * (1 + 0.4 * client) / 2
            lines.append(
                f"2026-04-29 09:5{number}:0{client},705 | INFO | {mark.format(client)} trained | loss: {own:.4f}"
            )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("mark", ["[client_{}]", "[Client {}]", "[party-{}]"])
def test_clients_that_train_in_turn_have_a_loss_each(tmp_path: Path, mark: str) -> None:
    (run,) = MLSystemsDebugger(plugins=False).debug(_written(tmp_path, _clients(mark))).runs
    assert [signal.kind for signal in run.signals] == ["loss"] * 10
    assert [round(float(v), 4) for v in run.signals[5].values] == [round(loss * 1.5, 4) for loss in LOSSES]
    assert run.findings == ()
    assert run.verdict is Verdict.HEALTHY


def test_a_number_in_brackets_that_no_client_has_is_no_client(tmp_path: Path) -> None:
    (run,) = MLSystemsDebugger(plugins=False).debug(_written(tmp_path, _clients("[chunk_{}]"))).runs
    assert [signal.kind for signal in run.signals] == ["loss"]


def _written(folder: Path, text: str) -> Path:
    path = folder / "experiment.log"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_classes_of_the_last_validation_are_no_epochs(tmp_path: Path) -> None:
    header = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
    rows = "".join(
        f"{header}      {n + 1}/8      2.29G      {x:.3f}      {x:.3f}      0.9      21      640\n"
        for n, x in enumerate(LOSSES)
    )
    classes = "".join(
        f"                    {n}s        157        159      0.782      0.994      0.813       0.64\n"
        for n in range(2, 9)
    )
    (run,) = _read(tmp_path, f"model: yolo\nstarting\n{rows}      Class     Images  Instances      Box(P\n{classes}")
    assert _series(run)["box_loss"] == list(enumerate(LOSSES, 1))
