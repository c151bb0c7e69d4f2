"""Numbers without names: rows of bare numbers, one per line or in a single line, and lists that a script printed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from holdfast.debug import MLSystemsDebugger, Verdict
from holdfast.debug.types import ReasonCode, Signal
from holdfast.errors import UnreadableLogError

DEBUGGER = MLSystemsDebugger(plugins=False)
LOSSES = [round(2.0 / (n + 1) + 0.2, 4) for n in range(24)]


def runs_of(folder: Path, name: str, content: str) -> list[list[Signal]]:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return [list(run.signals) for run in DEBUGGER.debug(path).runs]


def losses(signals: list[Signal]) -> list[list[float]]:
    return [signal.values.tolist() for signal in signals if signal.kind == "loss"]


@pytest.mark.parametrize(
    "name", ["loss.txt", "losses.csv", "train_loss.log", "loss_log.txt", "lossfc300fc60.txt", "trainloss2.txt"]
)
def test_one_number_per_line_is_what_the_file_is_named_after(tmp_path: Path, name: str) -> None:
    (signals,) = runs_of(tmp_path, name, "".join(f"{loss}\n" for loss in LOSSES))
    assert losses(signals) == [LOSSES]
    assert signals[0].steps.tolist() == list(range(24))


@pytest.mark.parametrize(
    "row",
    [
        "{n},{loss}",
        "{n}\t{loss}",
        "{n} {loss}",
        "{n}, {loss}, 0.5",
        "[{n}  {loss}]",
        "{n}_{loss}",
        "{n}: {loss}",
        "epoch{n}\t{loss}",
        "Epoch {n}:{loss}",
        "iter_{n},{loss}",
    ],
)
def test_a_column_that_counts_is_the_step(tmp_path: Path, row: str) -> None:
    text = "".join(row.format(n=7 + 10 * n, loss=loss) + "\n" for n, loss in enumerate(LOSSES))
    (signals,) = runs_of(tmp_path, "losses.csv", text)
    assert losses(signals) == [LOSSES]
    assert signals[0].steps.tolist() == [7 + 10 * n for n in range(24)]


def test_a_count_that_begins_again_is_another_run(tmp_path: Path) -> None:
    text = "".join(f"{n}, {loss}\n" for n, loss in enumerate(LOSSES))
    assert [losses(signals) for signals in runs_of(tmp_path, "loss.txt", text * 2)] == [[LOSSES], [LOSSES]]


def test_several_columns_without_a_count_keep_their_order(tmp_path: Path) -> None:
    (signals,) = runs_of(tmp_path, "loss_log.txt", "".join(f"{loss},{-200 + n}\n" for n, loss in enumerate(LOSSES)))
    assert losses(signals) == [LOSSES]
    assert [signal.kind for signal in signals] == ["loss", None]


def test_of_a_training_log_the_first_column_that_falls_is_the_loss(tmp_path: Path) -> None:
    (signals,) = runs_of(tmp_path, "train.log", "".join(f"{n}, {loss}, 49.8\n" for n, loss in enumerate(LOSSES)))
    assert losses(signals) == [LOSSES]


def test_a_column_that_nothing_names_and_that_does_not_fall_has_no_kind(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"{n} {n % 7 + 0.5}\n" for n in range(40)), encoding="utf-8")
    (run,) = DEBUGGER.debug(path).runs
    assert [signal.kind for signal in run.signals] == [None]
    assert run.reason is not None
    assert run.reason.code is ReasonCode.NO_LOSS


def test_a_bare_loss_that_turns_nan_is_found(tmp_path: Path) -> None:
    values = [*LOSSES, *([float("nan")] * 8)]
    path = tmp_path / "train.log"
    path.write_text("".join(f"{n}, {value}, 50.2\n" for n, value in enumerate(values)), encoding="utf-8")
    (run,) = DEBUGGER.debug(path).runs
    assert [finding.detection.failure.name for finding in run.findings] == ["nan"]


def test_a_run_whose_bare_loss_is_nan_from_its_first_row_is_found(tmp_path: Path) -> None:
    good = "".join(f"{n}, {loss}, 50.{n}\n" for n, loss in enumerate(LOSSES))
    bad = "".join(f"{n},     nan, 50.{n}\n" for n in range(9))
    path = tmp_path / "train.log"
    path.write_text(good + bad, encoding="utf-8")
    found = [finding.detection.failure.name for run in DEBUGGER.debug(path).runs for finding in run.findings]
    assert found == ["nan"]


def test_a_single_line_of_numbers_is_a_series(tmp_path: Path) -> None:
    (signals,) = runs_of(tmp_path, "losses.csv", "," + ",".join(map(str, LOSSES)) + "\n")
    assert losses(signals) == [LOSSES]


@pytest.mark.parametrize(
    "form", ["{name}: {values}", "{name} = {values}", "{name}:{values}", "the {name} is: {values}"]
)
def test_lists_that_were_printed_are_series(tmp_path: Path, form: str) -> None:
    text = form.format(name="train_loss", values=LOSSES) + "\n" + form.format(name="val_acc", values=[0.5] * 24) + "\n"
    (signals,) = runs_of(tmp_path, "output.txt", "loading data\n" + text + "done\n")
    assert losses(signals) == [LOSSES]
    assert [signal.kind for signal in signals if len(signal.values) == 24 and signal.kind != "loss"] == ["metric"]


def test_lists_under_names_of_models_are_runs_of_what_the_file_is_named_after(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, "acc_log.txt", f"RNN:{[0.5, *LOSSES]}\nLSTM:{LOSSES}\n")
    assert [[(signal.kind, len(signal.values)) for signal in signals] for signals in runs] == [
        [("metric", 25)],
        [("metric", 24)],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "12 0.5 0.5 0.1 0.2\n3 0.1 0.7 0.2 0.2\n",  # labels of boxes
        "/data/one.jpg\n/data/two.jpg\n" * 20,
        "".join(f"192.168.0.{n}\n" for n in range(20)),
        "".join(f"2024-01-{n:02d}\n" for n in range(1, 20)),
    ],
)
def test_what_is_no_table_of_numbers_is_not_read_as_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableLogError):
        DEBUGGER.debug(path)


def test_a_healthy_bare_loss_is_healthy(tmp_path: Path) -> None:
    noise = np.random.default_rng(3).normal(0.0, 0.01, 400)
    path = tmp_path / "loss.txt"
    path.write_text("".join(f"{2.0 / (1 + n / 40) + noise[n]:.5f}\n" for n in range(400)), encoding="utf-8")
    assert DEBUGGER.debug(path).verdict is Verdict.HEALTHY


def test_a_column_that_stands_still_does_not_count(tmp_path: Path) -> None:
    (signals,) = runs_of(tmp_path, "loss.txt", "".join(f"{loss} 16\n" for loss in LOSSES))
    assert losses(signals) == [LOSSES]
    (signals,) = runs_of(tmp_path, "loss_log.txt", "".join(f"16 {loss}\n" for loss in LOSSES))
    assert signals[-1].steps.tolist() == list(range(24))


def test_a_row_of_brackets_over_several_lines_is_one_row(tmp_path: Path) -> None:
    rows = np.array([[n, loss, *np.linspace(0.1, 0.9, 9)] for n, loss in enumerate(LOSSES)])
    text = "\n".join(np.array2string(row, max_line_width=40) for row in rows)
    assert text.count("\n") > 2 * len(rows), "each row takes several lines"
    (signals,) = runs_of(tmp_path, "losses.txt", text)
    assert [len(signal.values) for signal in signals] == [24] * 10
    assert signals[0].values == pytest.approx(LOSSES)
    assert signals[0].steps.tolist() == list(range(24))


def test_a_named_list_as_numpy_prints_it_is_a_series(tmp_path: Path) -> None:
    text = "".join(f"{name}: {np.array2string(np.array(LOSSES), max_line_width=60)}\n" for name in ("loss", "val_loss"))
    (signals,) = runs_of(tmp_path, "result.txt", text)
    assert {signal.name: signal.values.tolist() for signal in signals} == {"loss": LOSSES, "val_loss": LOSSES}


def test_a_bracket_that_is_never_closed_costs_no_row(tmp_path: Path) -> None:
    (signals,) = runs_of(tmp_path, "loss.txt", "".join(f"[{loss}\n" for loss in LOSSES))
    assert losses(signals) == [LOSSES]


def test_of_columns_without_names_the_sum_of_the_others_is_the_loss(tmp_path: Path) -> None:
    text = "".join(f"{loss},{loss * 0.75},{loss * 0.25}\n" for loss in LOSSES)
    (signals,) = runs_of(tmp_path, "loss.csv", text)
    assert losses(signals) == [LOSSES]
    (unsure,) = runs_of(tmp_path, "losses.csv", text.replace(",", ",1"))
    assert len(losses(unsure)) == 3
    assert all(signal.metadata["unnamed"] for signal in unsure)


def test_a_logged_tuple_of_time_epoch_rate_and_loss_is_a_row(tmp_path: Path) -> None:
    text = "".join(
        f"INFO:root:(datetime.datetime(2017, 7, 28, 13, {n}, 54, 228395), {n}, 0.001, {loss})\n"
        for n, loss in enumerate(LOSSES)
    )
    (signals,) = runs_of(tmp_path, "log_training_opt.log", text)
    assert losses(signals) == [LOSSES]


def test_a_json_list_of_rows_of_one_is_the_list_without_them(tmp_path: Path) -> None:
    (signals,) = runs_of(tmp_path, "loss.json", json.dumps([[loss] for loss in LOSSES]))
    assert losses(signals) == [LOSSES]
    (signals,) = runs_of(tmp_path, "log.json", json.dumps([[{"loss": loss, "walls": [1, 2]}] for loss in LOSSES]))
    assert losses(signals) == [LOSSES]


@pytest.mark.parametrize(("epochs", "batches", "first"), [(6, 4, 1), (50, 19, 1), (3, 8, 0), (12, 2, 0)])
def test_an_epoch_and_a_batch_before_the_loss_are_counters(
    tmp_path: Path, epochs: int, batches: int, first: int
) -> None:
    values = np.linspace(1.5, 0.1, epochs * batches).round(4).tolist()
    rows = [f"{n // batches + first},{n % batches + first},{value}\n" for n, value in enumerate(values)]
    (signals,) = runs_of(tmp_path, "training_loss.txt", "".join(rows))
    assert losses(signals) == [values]
    assert np.all(np.diff(signals[0].steps) > 0)


def test_a_total_whose_parts_have_parts_is_the_loss(tmp_path: Path) -> None:
    parts = [(loss, loss / 3, loss / 5) for loss in LOSSES]
    rows = [f"{n} {a + b} {a} {b} {c} {b - c} {n / 7 + 1}\n" for n, (a, b, c) in enumerate(parts)]
    (signals,) = runs_of(tmp_path, "training_loss.txt", "".join(rows))
    assert len(losses(signals)) == 1
    assert losses(signals)[0][0] == pytest.approx(LOSSES[0] * 4 / 3)


def test_columns_of_which_none_is_the_sum_of_others_are_read_and_not_judged(tmp_path: Path) -> None:
    rows = [f"{n} {loss} {loss * 2} {n % 3} {n % 5} {n % 7} {n * 100}\n" for n, loss in enumerate(LOSSES)]
    (tmp_path / "training_loss.txt").write_text("".join(rows), encoding="utf-8")
    (run,) = DEBUGGER.debug(tmp_path / "training_loss.txt").runs
    assert losses(list(run.signals))[0] == LOSSES
    assert (run.verdict, run.findings) == (Verdict.UNKNOWN, ())
    assert run.reason is not None
    assert run.reason.code is ReasonCode.NO_LOSS


def test_rows_of_many_numbers_with_decimal_commas_are_one_series_that_is_not_judged(tmp_path: Path) -> None:
    values = [round(-70.5 + n * 3.25, 2) for n in range(180)]
    rows = [values[begin : begin + 60] for begin in (0, 60, 120)]
    text = "".join(";".join(str(value).replace(".", ",") for value in row) + "\n" for row in rows)
    (tmp_path / "rewards.csv").write_text(text, encoding="utf-8")
    (run,) = DEBUGGER.debug(tmp_path / "rewards.csv").runs
    assert [signal.values.tolist() for signal in run.signals] == [values]
    assert run.signals[0].kind == "reward"
    assert run.verdict is Verdict.UNKNOWN


def test_a_named_file_of_a_few_rows_is_read_and_too_short(tmp_path: Path) -> None:
    (tmp_path / "train_loss.txt").write_text("5.75\n2.5\n2.25\n2.125\n2.0\n", encoding="utf-8")
    (run,) = DEBUGGER.debug(tmp_path / "train_loss.txt").runs
    assert losses(list(run.signals)) == [[5.75, 2.5, 2.25, 2.125, 2.0]]
    assert run.reason is not None
    assert run.reason.code is ReasonCode.TOO_FEW_POINTS


def test_series_that_only_say_on_what_they_were_measured_are_losses_where_one_falls(tmp_path: Path) -> None:
    up = [1.0 + n / 24 for n in range(24)]
    (signals,) = runs_of(tmp_path, "history.json", json.dumps({"train": LOSSES, "val": up}))
    assert {signal.name: signal.kind for signal in signals} == {"train": "loss", "val": "eval_loss"}
    (signals,) = runs_of(tmp_path, "accuracy.json", json.dumps({"train": up, "val": up}))
    assert {signal.kind for signal in signals} == {None}
    (signals,) = runs_of(tmp_path, "named.json", json.dumps({"train": up, "val": LOSSES, "loss": LOSSES}))
    assert {signal.name: signal.kind for signal in signals if signal.kind} == {"loss": "loss"}


def test_settings_in_the_name_of_a_file_do_not_name_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "lr=0.01_processed_train_loss.txt"
    path.write_text("".join(f"{2 / (n + 1) + 0.1}\n" for n in range(50)))
    (run,) = DEBUGGER.debug(path).runs
    assert [signal.kind for signal in run.signals] == ["loss"]


def test_numbers_that_end_a_little_lower_by_chance_are_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "train_result7.txt"
    path.write_text("".join(f"{1200 + 300 * math.sin(n / 2) - n / 100}\n" for n in range(3000)))
    (run,) = DEBUGGER.debug(path).runs
    assert [signal.kind for signal in run.signals] == [None]


def test_how_many_rows_of_bare_numbers_are_a_series_is_a_threshold(tmp_path: Path) -> None:
    (tmp_path / "train_log.txt").write_text("".join(f"{n} {3.0 / (n + 1):.4f}\n" for n in range(30)))
    assert MLSystemsDebugger(plugins=False).debug(tmp_path / "train_log.txt").runs[0].signals
    with pytest.raises(UnreadableLogError):
        MLSystemsDebugger(plugins=False, thresholds={"reading": {"bare_rows": 50}}).debug(tmp_path / "train_log.txt")


def test_a_word_that_only_begins_like_loss_names_nothing(tmp_path: Path) -> None:
    (tmp_path / "lossless40.txt").write_text("".join(f"{loss}\n" for loss in LOSSES), encoding="utf-8")
    with pytest.raises(UnreadableLogError):
        DEBUGGER.debug(tmp_path / "lossless40.txt")


def test_lists_of_different_lengths_are_one_series_that_is_not_judged(tmp_path: Path) -> None:
    lists = [LOSSES + LOSSES, LOSSES[:12], LOSSES * 4]
    text = "\n" + "".join(" ".join(map(str, values)) + " \n" for values in lists)
    (tmp_path / "losses.txt").write_text(text, encoding="utf-8")
    (run,) = DEBUGGER.debug(tmp_path / "losses.txt").runs
    assert losses(list(run.signals)) == [[value for values in lists for value in values]]
    assert run.verdict is Verdict.UNKNOWN
    (tmp_path / "notes.txt").write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableLogError):
        DEBUGGER.debug(tmp_path / "notes.txt")


def test_an_epoch_that_never_ends_is_a_counter_too(tmp_path: Path) -> None:
    values = [*LOSSES, *LOSSES[:16]]
    rows = "".join(f"0, {n if n < 24 else n - 24}, {loss}\n" for n, loss in enumerate(values))
    runs = runs_of(tmp_path, "trainlog.txt", rows)
    assert [losses(signals) for signals in runs] == [[LOSSES], [LOSSES[:16]]]


def test_a_training_log_of_many_columns_without_names_is_read_and_not_judged(tmp_path: Path) -> None:
    rows = [f"0, {n}, {loss * 3}, {loss}, {loss / 2}, {loss / 3}, 0\n" for n, loss in enumerate(LOSSES)]
    (tmp_path / "trainlog.txt").write_text("".join(rows), encoding="utf-8")
    (run,) = DEBUGGER.debug(tmp_path / "trainlog.txt").runs
    assert len(run.signals) == 5
    assert run.verdict is Verdict.UNKNOWN
