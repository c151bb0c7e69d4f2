"""Forms of single scripts: what Python prints, tables on their side, sections, counters of other names."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.debug import MLSystemsDebugger, RunReport, Verdict
from holdfast.errors import UnreadableLogError

DEBUGGER = MLSystemsDebugger(plugins=False)
LOSSES = [round(2.0 / (n + 1) + 0.2, 4) for n in range(24)]
SHARES = [round(1 - loss / 3, 4) for loss in LOSSES]
PAIRS = list(zip(LOSSES, SHARES, strict=True))


def run_of(folder: Path, name: str, content: str) -> RunReport:
    (folder / name).write_text(content, encoding="utf-8")
    (run,) = DEBUGGER.debug(folder / name).runs
    return run


def series_of(run: RunReport) -> dict[str, list[float]]:
    return {signal.name: [float(value) for value in signal.values] for signal in run.signals}


@pytest.mark.parametrize(
    "text",
    [
        str({"loss": LOSSES, "acc": SHARES, "note": None}),
        "{'loss': [" + ", ".join(f"np.float32({loss})" for loss in LOSSES) + f"], 'acc': array({SHARES})}}",
        "{'loss': [" + ", ".join(f"tensor({loss}, device='cuda:0')" for loss in LOSSES) + f"], 'acc': {SHARES}}}",
        f"{{'loss': ({', '.join(map(str, LOSSES))}), 'acc': {SHARES}, 'done': True, 'best': nan}}",
    ],
)
def test_a_dictionary_as_python_prints_it_is_read(tmp_path: Path, text: str) -> None:
    series = series_of(run_of(tmp_path, "run.txt", text))
    assert (series["loss"], series["acc"]) == (LOSSES, SHARES)


@pytest.mark.parametrize("text", ["{'loss': [__import__('os').getcwd()]}", "{'a': [" + "(" * 5000])
def test_a_dictionary_that_is_none_is_refused_and_never_evaluated(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnreadableLogError):
        run_of(tmp_path, "run.txt", text)


def test_tensors_line_by_line_are_bare_numbers(tmp_path: Path) -> None:
    text = "".join(f"tensor({loss}, device='cuda:0', grad_fn=<MeanBackward0>)\n" for loss in LOSSES)
    assert series_of(run_of(tmp_path, "loss.txt", text)) == {"loss": LOSSES}


def test_an_array_whose_bracket_closes_on_a_line_of_its_own_is_read(tmp_path: Path) -> None:
    text = "[" + "\n ".join(" ".join(map(str, LOSSES[n : n + 6])) for n in range(0, 24, 6)) + "\n]"
    assert series_of(run_of(tmp_path, "loss.txt", text)) == {"loss": LOSSES}


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_table_on_its_side_is_read(tmp_path: Path, mark: str) -> None:
    rows: dict[str, list[float]] = {"epoch": [*range(24)], "loss": LOSSES, "acc": SHARES}
    text = "".join(mark.join(map(str, (name, *values))) + "\n" for name, values in rows.items())
    assert series_of(run_of(tmp_path, "run.csv", text)) == {"loss": LOSSES, "acc": SHARES}


@pytest.mark.parametrize("form", ["{n} {loss} {share}", "({n}, {loss}, {share})", "{n:5d} {loss} {share}%"])
def test_numbers_after_a_counter_are_read_and_not_judged_where_nothing_names_them(tmp_path: Path, form: str) -> None:
    text = "".join(form.format(n=n, loss=loss, share=share) + "\n" for n, (loss, share) in enumerate(PAIRS))
    run = run_of(tmp_path, "results_7.txt", text)
    assert list(series_of(run).values()) == [LOSSES, SHARES]
    assert run.verdict is Verdict.UNKNOWN


def test_numbers_without_a_counter_in_a_file_of_no_telling_name_are_data(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLogError):
        run_of(tmp_path, "points.txt", "".join(f"{loss} {share}\n" for loss, share in PAIRS))


@pytest.mark.parametrize(
    "form",
    [
        "loss after {n} iterations: {loss}",
        "Game {n} loss {loss}",
        "Generation {n}: loss = {loss}",
        "Round {n}, loss {loss}",
    ],
)
def test_counters_of_other_names_are_places(tmp_path: Path, form: str) -> None:
    run = run_of(tmp_path, "out.log", "".join(form.format(n=10 * n, loss=loss) + "\n" for n, loss in enumerate(LOSSES)))
    assert series_of(run) == {"loss": LOSSES}
    assert run.signals[0].steps[-1] == 230


def test_what_stands_under_the_name_of_a_split_was_measured_there(tmp_path: Path) -> None:
    text = "".join(
        f"--- Epoch {n} ---\nTrain:\n  loss {loss}\n  acc {share}\n== Test ==\n  loss {loss + 9}\n"
        for n, (loss, share) in enumerate(PAIRS)
    )
    run = run_of(tmp_path, "out.log", text)
    assert series_of(run) == {"loss": LOSSES, "acc": SHARES, "val loss": [loss + 9 for loss in LOSSES]}
    assert run.verdict is Verdict.HEALTHY


def test_a_column_that_is_merely_a_value_is_what_the_file_is_called(tmp_path: Path) -> None:
    text = "Wall time,Step,Value\n" + "".join(f"{1.6e9 + n},{n},{loss}\n" for n, loss in enumerate(LOSSES))
    assert run_of(tmp_path, "run-tag-loss.csv", text).signals[0].kind == "loss"


def test_what_stands_in_brackets_after_a_split_is_of_that_split(tmp_path: Path) -> None:
    rows = (f"{n} \tTrain(L={a:.3f}  | A=0.5) \tValid(L={a + 1:.3f}  | A=0.4) \t> Best\n" for n, a in enumerate(LOSSES))
    run = run_of(tmp_path, "log.txt", "".join(rows))
    assert {signal.name: signal.kind for signal in run.signals} == {
        "Train loss": "loss",
        "Train acc": "metric",
        "Valid loss": "eval_loss",
        "Valid acc": "metric",
    }
    assert series_of(run)["Valid loss"] == [round(loss + 1, 3) for loss in LOSSES]


def test_a_record_between_lines_of_text_holds_what_it_measured(tmp_path: Path) -> None:
    tick = "tick {0}     kimg {0}.0    time 1h 02m   sec/tick 646.0   sec/kimg 161.49  augment 0.000\n"
    record = '{{"results": {{"fid50k_full": {}}}, "metric": "fid50k_full", "total_time": 94.2, "num_gpus": 2}}\n'
    text = "".join(tick.format(n) + "Evaluating metrics...\n" + record.format(loss) for n, loss in enumerate(LOSSES))
    assert series_of(run_of(tmp_path, "log.txt", text)) == {"fid50k_full": LOSSES}


def test_losses_between_the_lines_of_a_known_format_are_read(tmp_path: Path) -> None:
    known = (
        "[2025-10-28 20:50:10,790] [INFO] [logging.py:107:log_dist] [Rank 0] "
        "step={0}, skipped=0, lr=[2e-05], mom=[(0.9, 0.999)]\n"
    )
    rows = (known.format(n) + f"[Step {n}/24] Loss: {loss} | Tokens/s: 5854.14\n" for n, loss in enumerate(LOSSES))
    assert series_of(run_of(tmp_path, "log.txt", "".join(rows)))["Loss"] == LOSSES


def test_a_date_in_brackets_opens_no_json(tmp_path: Path) -> None:
    rows = (f"[2023-08-04 16:30:{n:02},661][__main__][INFO] - epoch {n} loss {loss}\n" for n, loss in enumerate(LOSSES))
    assert series_of(run_of(tmp_path, "train.log", "".join(rows))) == {"loss": LOSSES}


@pytest.mark.parametrize("column", ["dataset", "method", "type"])
def test_results_of_many_things_are_no_run(tmp_path: Path, column: str) -> None:
    names = ["iris", "wine", "glass", "yeast"]
    rows = (f"{names[n % 4]},{n % 5},{share}\n" for n, share in enumerate(SHARES))
    with pytest.raises(UnreadableLogError):
        run_of(tmp_path, "results.csv", f"{column},fold,accuracy\n" + "".join(rows))
    rows = (f"{names[n % 4]},{n},{share}\n" for n, share in enumerate(SHARES))
    assert series_of(run_of(tmp_path, "steps.csv", f"{column},step,accuracy\n" + "".join(rows)))


@pytest.mark.parametrize(
    "row",
    [
        "2024-07-07 16:26:29,710 - mylogger - INFO - loss:{1}\n",
        "Epoch {0}: 100%|######| 9000/9000 [00:09<00\nTraining Loss (epoch {0}): {1}\n",
    ],
)
def test_a_logger_with_a_name_and_a_counter_in_brackets_hide_no_loss(tmp_path: Path, row: str) -> None:
    text = "Start Train\n" * 20 + "".join(row.format(n, loss) for n, loss in enumerate(LOSSES))
    (series,) = series_of(run_of(tmp_path, "log.txt", text)).values()
    assert series == LOSSES
