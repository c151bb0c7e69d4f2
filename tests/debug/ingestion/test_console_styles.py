"""Console output of many frameworks: the loss is read number by number, whatever stands around it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.debug.detectors.series import falling_loss
from tests.debug.ingestion.console_styles import STYLES, TOTAL, write

from holdfast.debug.debugger import MLSystemsDebugger
from holdfast.debug.types import Failure, RunReport, Signal, Verdict

DEBUGGER = MLSystemsDebugger(plugins=False)


def diagnose(tmp_path: Path, text: str, name: str = "train.log") -> RunReport:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    (run,) = DEBUGGER.debug(path).runs
    return run


def loss_of(run: RunReport) -> Signal:
    return max((signal for signal in run.signals if signal.kind == "loss"), key=lambda signal: len(signal.values))


@pytest.mark.parametrize("style", STYLES)
def test_a_healthy_log_gives_its_losses_and_no_alarm(tmp_path: Path, style: str) -> None:
    loss = falling_loss(TOTAL)
    run = diagnose(tmp_path, write(style, loss.tolist()))
    own = loss_of(run)
    assert run.format == STYLES[style][0]
    np.testing.assert_allclose(own.values, loss, atol=1e-3)
    assert np.all(np.diff(own.steps) > 0)
    assert own.replica is None
    assert (run.verdict, run.findings) == (Verdict.HEALTHY, ())


@pytest.mark.parametrize("style", STYLES)
def test_a_loss_that_turns_into_nan_is_found_where_it_happens(tmp_path: Path, style: str) -> None:
    loss = falling_loss(TOTAL)
    loss[200:] = np.nan
    run = diagnose(tmp_path, write(style, loss.tolist()))
    found = next(finding.detection for finding in run.findings if finding.detection.failure == Failure.NAN)
    healthy = loss_of(diagnose(tmp_path, write(style, falling_loss(TOTAL).tolist())))
    assert found.first_step == healthy.steps[200]


def test_lines_of_several_ranks_are_series_of_their_own(tmp_path: Path) -> None:
    loss = falling_loss(TOTAL)
    lines = [
        f"[rank{rank}]: step {i} loss {value + rank / 1000:.4f}\n" for i, value in enumerate(loss) for rank in range(4)
    ]
    run = diagnose(tmp_path, "".join(lines))
    assert {signal.replica for signal in run.signals} == {0, 1, 2, 3}
    assert {(signal.name, len(signal.values)) for signal in run.signals} == {("loss", TOTAL)}
    assert run.verdict is Verdict.HEALTHY


def test_labels_of_srun_are_ranks(tmp_path: Path) -> None:
    lines = [f"{rank}: step {i} loss {value:.4f}\n" for i, value in enumerate(falling_loss(TOTAL)) for rank in range(2)]
    assert {signal.replica for signal in diagnose(tmp_path, "".join(lines)).signals} == {0, 1}


def test_training_and_held_out_lines_in_turn_are_two_losses(tmp_path: Path) -> None:
    lines = [
        f"[train] epoch {i} loss: {value:.4f}\n[val] epoch {i} loss: {value + 0.05:.4f}\n"
        for i, value in enumerate(falling_loss(TOTAL), 1)
    ]
    run = diagnose(tmp_path, "".join(lines))
    assert {(signal.name, signal.kind, len(signal.values)) for signal in run.signals} == {
        ("loss", "loss", TOTAL),
        ("val loss", "eval_loss", TOTAL),
    }


def stretch(begin: int, end: int) -> str:
    loss = falling_loss(TOTAL).tolist()
    return "".join(json.dumps({"step": n, "loss": loss[n]}) + "\n" for n in range(begin, end))


def test_a_run_that_was_resumed_from_a_checkpoint_into_the_same_file_is_one_run(tmp_path: Path) -> None:
    run = diagnose(tmp_path, stretch(0, 160) + stretch(100, TOTAL), "log.jsonl")
    assert loss_of(run).steps.tolist() == list(range(TOTAL))
    assert run.verdict is Verdict.HEALTHY


def test_a_run_that_was_started_again_from_the_beginning_is_a_run_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(stretch(0, 160) + stretch(0, TOTAL))
    first, second = DEBUGGER.debug(path).runs
    assert [loss_of(run).steps.tolist() for run in (first, second)] == [list(range(160)), list(range(TOTAL))]
    assert [run.part and (run.part.number, run.part.total) for run in (first, second)] == [(1, 2), (2, 2)]


def test_a_warning_about_a_loss_that_is_nan_counts(tmp_path: Path) -> None:
    text = "".join(f"step {i} loss {value:.4f}\n" for i, value in enumerate(falling_loss(TOTAL)))
    run = diagnose(tmp_path, text + "WARNING: Loss is NaN, skipping batch\n" * 3)
    assert run.findings[0].detection.failure == Failure.NAN


def megatron(loss: bool, *, until: int = TOTAL) -> str:
    return "".join(
        f" iteration {i:8d}/ 1000 | elapsed time per iteration (ms): 512.1 | learning rate: 1.0E-04 |"
        + (f" lm loss: {value:.6E} |" if loss and i < until else "")
        + " loss scale: 1.0 | number of skipped iterations: 0 | number of nan iterations: 0 |\n"
        for i, value in enumerate(falling_loss(TOTAL), 1)
    )


def test_a_megatron_log_that_never_prints_a_loss_cannot_be_judged_and_says_why(tmp_path: Path) -> None:
    run = diagnose(tmp_path, megatron(loss=False))
    assert run.verdict is Verdict.UNKNOWN
    assert any("no line prints a loss" in note for note in run.notes)


def test_a_megatron_log_that_stops_printing_its_loss_has_a_loss_that_is_nan(tmp_path: Path) -> None:
    run = diagnose(tmp_path, megatron(loss=True, until=150))
    assert (run.findings[0].detection.failure, run.findings[0].detection.first_step) == (Failure.NAN, 150)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("semicolons.csv", "step;loss;lr\n"
         + "".join(f"{i};{3 - i / 100:.4f};0,001\n".replace(".", ",") for i in range(200))),
        ("table.md", "| step | loss |\n|---|---|\n" + "".join(f"| {i} | {3 - i / 100:.4f} |\n" for i in range(200))),
        ("spacy.txt", "E    #       LOSS NER  SCORE \n---  ------  --------  ------\n"
         + "".join(f"{i // 40:3d}  {i:6d}  {3 - i / 100:8.4f}  {i / 500:6.2f}\n" for i in range(200))),
        ("skorch.txt", "  epoch    train_loss    valid_acc     dur\n-------  ------------  -----------  ------\n"
         + "".join(f"{i:7d}      \x1b[36m{3 - i / 100:.4f}\x1b[0m     \x1b[32m0.5\x1b[0m  0.1\n" for i in range(200))),
        ("results.csv", "    epoch,   train/box_loss,   val/box_loss\n"
         + "".join(f"{i:9d},{3 - i / 100:17.5g},{3.1 - i / 100:15.5g}\n" for i in range(200))),
    ],
)  # fmt: skip
def test_tables_of_many_looks_are_read(tmp_path: Path, name: str, text: str) -> None:
    own = loss_of(diagnose(tmp_path, text, name))
    np.testing.assert_allclose(own.values, 3 - np.arange(200) / 100, atol=1e-3)
    assert own.steps.tolist() == list(range(200))


@pytest.mark.parametrize(
    ("train", "held_out"),
    [
        ("TRAIN in epoch {e} , step {b}, loss = {v}", "TEST in epoch{e}, loss = {v}, acc = 45.53%"),
        (
            "INFO - 09/04/20 07:56:14 - 0:00:27 - Epoch[{e}] - Iter: [{b}/4]\tTime 1.9 (1.9)\tLoss {v} ({v})",
            "INFO - 09/04/20 07:56:49 - 0:01:02 - Test:\tTime 4.750\tLoss {v}\tAcc@1 27.240\tBest Acc@1 so far 27.2",
        ),
    ],
)
def test_a_line_that_begins_with_its_split_belongs_to_it(tmp_path: Path, train: str, held_out: str) -> None:
    lines = [
        line
        for e in range(12)
        for line in (*(train.format(e=e, b=b, v=4 - e / 4 - b / 20) for b in range(4)), held_out.format(e=e, v=9 + e))
    ]
    run = diagnose(tmp_path, "\n".join(lines) + "\n")
    assert len(loss_of(run).values) == 48
    assert loss_of(run).values.max() == 4.0
    (own,) = (signal for signal in run.signals if signal.kind == "eval_loss")
    assert own.values.tolist() == [9 + e for e in range(12)]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Train error last 800 batches: {v}", "Train error"),
        ("episode {n} | mean reward (last 100 episodes): {v}", "reward"),
        ("Episode {n}: average loss over the last 50 steps: {v}", "loss"),
    ],
)
def test_how_much_a_number_was_averaged_over_is_not_the_number(tmp_path: Path, line: str, name: str) -> None:
    values = [round(3 - n / 10, 2) for n in range(20)]
    run = diagnose(tmp_path, "".join(line.format(n=n, v=v) + "\n" for n, v in enumerate(values)))
    assert {signal.name: signal.values.tolist() for signal in run.signals} == {name: values}


def test_a_counter_in_brackets_behind_its_split_is_the_step(tmp_path: Path) -> None:
    line = "I1216 14:22:57.913980 1396 train.py:577] [Train {n}/480] {{'grads_finite': 1.0, 'train_loss': {v}}}\n"
    run = diagnose(tmp_path, "".join(line.format(n=10 * n, v=3 - n / 20) for n in range(1, 48)))
    assert loss_of(run).steps.tolist() == [10 * n for n in range(1, 48)]


@pytest.mark.parametrize("index", ["", "epoch"])
def test_a_table_between_other_lines_is_read(tmp_path: Path, index: str) -> None:
    around = 'Model: "sequential"\n____\nLayer (type)    Output Shape    Param #\nembedding, dense, dropout\n\n'
    rows = "".join(f"{n},{2 - n / 10:.2f},0.{50 + n},{1.5 - n / 20:.2f}\n" for n in range(15))
    text = f"{around}{index},loss,acc,val_loss\n{rows}\n\nResults: (devel)\n  tp  fp\nadvise, 84, 41, 54\n"
    run = diagnose(tmp_path, text)
    assert {signal.name: signal.kind for signal in run.signals} == {
        "loss": "loss",
        "acc": "metric",
        "val_loss": "eval_loss",
    }
    assert loss_of(run).values.tolist() == [round(2 - n / 10, 2) for n in range(15)]
    assert loss_of(run).steps.tolist() == list(range(15))


def test_the_mean_of_an_epoch_is_a_series_of_its_own_beside_its_batches(tmp_path: Path) -> None:
    loss = falling_loss(480)
    text = "".join(
        "".join(f"Epoch {n}: 10%|# | {i + 1}/48 [00:04<00:00, CE={loss[n * 48 + i]:.4f}]\n" for i in range(48))
        + f"Epoch {n}\n  Train - CE: {loss[n * 48 : n * 48 + 48].mean() + 3:.4f}\n  Val   - CE: {loss[n * 48]:.4f}\n"
        for n in range(10)
    )
    run = diagnose(tmp_path, text)
    assert {signal.name: len(signal.values) for signal in run.signals} == {"CE": 480, "epoch CE": 10, "val CE": 10}
    assert (run.verdict, run.findings) == (Verdict.HEALTHY, ())


def test_a_spinning_up_table_has_its_return_and_its_epoch(tmp_path: Path) -> None:
    text = "".join(
        "-" * 39 + f"\n|             Epoch |{n:16d} |\n|      AverageEpRet |{n * 1.5:16.4g} |\n"
        f"|          StdEpRet |            12.3 |\n|             LossV |{3 - n / 50:16.4g} |\n" + "-" * 39 + "\n"
        for n in range(100)
    )
    run = diagnose(tmp_path, text)
    kinds = {signal.name: (signal.kind, len(signal.values), signal.steps[-1]) for signal in run.signals}
    assert kinds["AverageEpRet"] == ("reward", 100, 99)
    assert kinds["LossV"] == ("value_loss", 100, 99)
    assert kinds["StdEpRet"][0] is None
