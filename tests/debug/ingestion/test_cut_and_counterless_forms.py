"""Forms without a counter, documents cut short, rounds of one run, and a build tool's word for an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from holdfast.debug import MLSystemsDebugger, RunReport, Verdict
from holdfast.debug.ingestion.restarts import Counters, divide_runs
from holdfast.errors import UnreadableLogError

DEBUGGER = MLSystemsDebugger(plugins=False)
LOSSES = [round(2.0 / (n + 1) + 0.2, 4) for n in range(24)]


def runs_of(folder: Path, name: str, content: str) -> tuple[RunReport, ...]:
    (folder / name).write_text(content, encoding="utf-8")
    return tuple(DEBUGGER.debug(folder / name).runs)


def values_of(run: RunReport, name: str) -> list[float]:
    return [float(value) for value in {signal.name: signal for signal in run.signals}[name].values]


@pytest.mark.parametrize("gap", ["\t", "   "])
def test_a_table_without_a_counter_after_settings_is_read(tmp_path: Path, gap: str) -> None:
    rows = "".join(f"{gap.join(('0.01', str(loss), str(loss + 0.5)))}{gap}\n" for loss in LOSSES)
    header = gap.join(("Learning Rate", "Train Loss", "Valid Loss"))
    text = f"==>Arguments:\nepochs:100\nlr:0.01\n==>Training log:\n{header}{gap}\n{rows}"
    (run,) = runs_of(tmp_path, "log.txt", text)
    assert values_of(run, "Train Loss") == LOSSES
    assert run.verdict is Verdict.HEALTHY


def test_a_second_table_without_a_counter_is_a_second_run(tmp_path: Path) -> None:
    rows = "".join(f"  {loss}  {loss + 0.5}\n" for loss in LOSSES)
    settings = "model =ResNet50\nlearning-rate =0.001\nbatch-size =32\nTraining Summary:\n"
    one = f"{settings}train_loss  val_loss\n{rows}Remarks: none\n\n"
    assert [values_of(run, "train_loss") for run in runs_of(tmp_path, "train.log", one + one)] == [LOSSES, LOSSES]


def test_names_in_one_list_and_numbers_in_the_next_are_pairs(tmp_path: Path) -> None:
    lines = [f"INFO - Epoch {n}    [Avg. Loss, Norm]: [{loss}, {n + 7.5}], 0\n" for n, loss in enumerate(LOSSES)]
    (run,) = runs_of(tmp_path, "job.out", "".join(lines))
    assert values_of(run, "Loss") == LOSSES


@pytest.mark.parametrize("cut", [2, 5, 30])
def test_of_a_document_that_is_cut_short_the_whole_part_is_read(tmp_path: Path, cut: int) -> None:
    text = json.dumps({"loss": LOSSES, "val_loss": LOSSES}, indent=4)[:-cut]
    (run,) = runs_of(tmp_path, "history.json", text)
    assert values_of(run, "loss") == LOSSES
    assert len(values_of(run, "val_loss")) >= len(LOSSES) - 3
    assert any("truncated" in note for note in run.notes)


@pytest.mark.parametrize("text", ['{"loss": [1, 2}, "a": [', "[1, 2]]"])
def test_a_document_that_is_wrong_before_its_end_is_not_mended(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnreadableLogError):
        runs_of(tmp_path, "history.json", text)


def rounds(count: int, rows: int, starts: np.ndarray) -> Counters:
    steps = np.tile(np.arange(1.0, rows + 1), count)
    level = np.concatenate([start + np.linspace(0, 10, rows) for start in starts])
    return Counters(steps, level=level, whole_run=True)


def test_many_stretches_of_one_length_that_go_on_from_each_other_are_rounds_of_one_run() -> None:
    assert divide_runs(rounds(12, 40, 10.0 * np.arange(12))) == [0]
    assert len(divide_runs(rounds(12, 40, np.zeros(12)))) == 12  # A sweep: each begins where the first began.
    assert len(divide_runs(rounds(5, 40, 10.0 * np.arange(5)))) == 5


def test_a_build_tool_that_ends_in_an_error_is_a_crash(tmp_path: Path) -> None:
    (run,) = runs_of(
        tmp_path, "out.log", "nvcc ./train.cu -o train\n./train\nnan loss caught\nmake: *** [run] Error 1\n"
    )
    assert [finding.detection.failure.name for finding in run.findings] == ["crash"]


@pytest.mark.parametrize("name", ["monitor.csv", "0.monitor.csv", "episodes.csv"])
def test_the_first_column_of_a_monitor_of_episodes_is_the_reward(tmp_path: Path, name: str) -> None:
    rows = "".join(f"{5.0 * n},{n + 9},{1.5 * n}\n" for n in range(40))
    (run,) = runs_of(tmp_path, name, f'#{{"t_start": 1699895683.2, "env_id": "None"}}\nr,l,t\n{rows}')
    assert {signal.name: signal.kind for signal in run.signals} == {"r": "reward", "l": None, "t": None}
    assert run.verdict is Verdict.HEALTHY


@pytest.mark.parametrize("header", ["# train_loss test_acc", "# train_loss test_acc; GINE, lr 0.001, no dropout"])
def test_a_commented_header_needs_no_counter(tmp_path: Path, header: str) -> None:
    rows = "".join(f"{loss:.18e} {1 - loss / 4:.18e}\n" for loss in LOSSES)
    (run,) = runs_of(tmp_path, "run_3.txt", f"{header}\n{rows}")
    assert values_of(run, "train_loss") == LOSSES
    assert len(values_of(run, "test_acc")) == len(LOSSES)


def test_a_name_on_a_line_above_its_numbers_names_them(tmp_path: Path) -> None:
    rows = "\t".join(map(str, LOSSES))
    (run,) = runs_of(tmp_path, "train_results.txt", f"loss\n{rows}\nmap_50\n{rows}\nremarks\n1 2 3\n")
    assert values_of(run, "loss") == values_of(run, "map_50") == LOSSES
    assert len(run.signals) == 2


def test_rows_of_one_shape_are_read_where_no_name_is_known(tmp_path: Path) -> None:
    lines = [f"[epoch: {n}, iter: {100 * n}] chi: {loss} zeta: {n}\n" for n, loss in enumerate(LOSSES)]
    (run,) = runs_of(tmp_path, "run.log", "starting, batch 1 with id: 7\n" + "".join(lines))
    assert values_of(run, "chi") == LOSSES
    assert run.verdict is Verdict.UNKNOWN


def test_rows_of_unknown_names_are_left_out_beside_known_ones(tmp_path: Path) -> None:
    before = "".join(f"batch: {n} width: {n % 7}\n" for n in range(40))
    lines = "".join(f"epoch: {n} loss: {loss}\n" for n, loss in enumerate(LOSSES))
    (run,) = runs_of(tmp_path, "run.log", before + lines)
    assert values_of(run, "loss") == LOSSES
    assert [signal.name for signal in run.signals] == ["loss"]


def test_a_rate_in_brackets_and_losses_called_l_are_read(tmp_path: Path) -> None:
    lines = [
        f"INFO: [run..][epoch:{n:3d}, iter:{100 * n:8,d}, lr:({loss:.3e},)] [eta: 4:35:13] l_pix: {loss} \n"
        for n, loss in enumerate(LOSSES)
    ]
    (run,) = runs_of(tmp_path, "run.log", "".join(lines))
    assert values_of(run, "l_pix") == LOSSES
    assert len(values_of(run, "lr")) == len(LOSSES)
    assert run.verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    "row",
    [
        "{n} epoch, loss: {loss},  loss_test: {loss}, time: 0:11:54.556227",
        "2020-04-27 19:06:06,525 - root - INFO - {n} epoch, loss: {loss}, time: 0:11:54.556227",
        "{n}th iteration: loss = {loss}, after 3 minutes of waiting for data",
    ],
)
def test_a_counter_before_its_unit_at_the_head_of_a_row_is_its_place(tmp_path: Path, row: str) -> None:
    lines = [row.format(n=10 * n + 10, loss=loss) + "\n" for n, loss in enumerate(LOSSES)]
    (run,) = runs_of(tmp_path, "job.out", "".join(lines))
    (loss,) = (signal for signal in run.signals if signal.name == "loss")
    assert loss.values.tolist() == LOSSES
    assert loss.steps.tolist() == [10.0 * n + 10 for n in range(24)]


def test_a_number_of_epochs_in_a_sentence_is_no_place(tmp_path: Path) -> None:
    text = "".join(f"300 epochs to go\nepoch {n}: loss {loss}\n" for n, loss in enumerate(LOSSES))
    (run,) = runs_of(tmp_path, "job.out", text)
    (loss,) = (signal for signal in run.signals if signal.name == "loss")
    assert loss.steps.tolist() == list(range(24))


@pytest.mark.parametrize("name", ["Return", "Test reward", "loss"])
@pytest.mark.parametrize(
    "row", ["Num steps: {n}    {name}: {value}   Time: 0:00:15", "Num steps: {n}, {name}: {value}"]
)
def test_a_count_of_steps_before_what_was_measured_is_its_place(tmp_path: Path, row: str, name: str) -> None:
    lines = ["Num steps: 2000000, Eval interval: 10000\n"]
    lines += [row.format(n=10_000 * n, name=name, value=loss) + "\n" for n, loss in enumerate(LOSSES)]
    (run,) = runs_of(tmp_path, "training.log", "".join(lines))
    (series,) = (signal for signal in run.signals if signal.name == name)
    assert series.values.tolist() == LOSSES
    assert series.steps.tolist() == [10_000.0 * n for n in range(24)]


def test_the_best_epoch_named_after_the_last_row_is_no_place(tmp_path: Path) -> None:
    rows = [
        f"2020-05-19 {n:02d}:36:36,919 - precision: {0.9 - x / 4:.4f}, fscore: {0.8 - x / 4:.4f}"
        for n, x in enumerate(LOSSES)
    ]
    (run,) = runs_of(
        tmp_path, "log.log", "\n".join([*rows, "2020-05-20 00:40:20,555 - best epoch: 12 \t F1 = 0.74"]) + "\n"
    )
    fscore = {signal.name: signal for signal in run.signals}["fscore"]
    assert fscore.steps.tolist() == list(range(24))
    assert run.verdict is Verdict.HEALTHY
