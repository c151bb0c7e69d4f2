"""Texts that record something other than training: services, lists of tasks, messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.debug import MLSystemsDebugger, Verdict
from holdfast.errors import UnreadableLogError

DEBUGGER = MLSystemsDebugger(plugins=False)
TRACEBACK = (
    'Traceback (most recent call last):\n  File "lib/processors.pyx", line 27, in to_float\n'
    "ValueError: could not convert string to float: 'a'\n"
)
SERVICES = {
    "uvicorn": "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)\n",
    "flask": " * Running on http://127.0.0.1:5000\n",
    "django": "Starting development server at http://127.0.0.1:8000/\n",
    "gunicorn": "[2024-01-01 10:00:00 +0000] [7] [INFO] Starting gunicorn 20.1.0\n",
    "scheduler": "2026-07-28 09:44:06,045 [INFO] apscheduler.scheduler: Scheduler started\n",
    "chat bot": "2021-07-08 20:55:28,119 [INFO ]  Rasa server is up and running.\n",
    "requests": '127.0.0.1 - - [01/Jan/2024 10:00:00] "GET /status HTTP/1.1" 200 -\n',
    "celery": "[2024-01-01 10:00:00,000: INFO/MainProcess] celery@host ready.\n",
}
ERRORS = {
    "traceback": TRACEBACK,
    "logged": "2021-07-08 21:30:22,829 [ERROR]  User is not authenticated.\n" * 9,
    "logged exception": f"2026-07-28 10:01:21,000 [ERROR] app.jobs: the job failed\n{TRACEBACK}",
}


def write(tmp_path: Path, text: str, name: str = "train.log") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("after", [0, 30])
def test_an_error_of_a_service_that_trains_nothing_is_no_crash(
    tmp_path: Path, service: str, error: str, after: int
) -> None:
    said = "2026-07-28 10:01:20,501 [INFO] app.main: loaded the settings\n" * 5
    path = write(tmp_path, said + SERVICES[service] + ERRORS[error] + said * after)
    with pytest.raises(UnreadableLogError):
        DEBUGGER.debug(path)


def test_a_training_that_dies_beside_a_server_is_a_crash(tmp_path: Path) -> None:
    text = SERVICES["uvicorn"] + "Starting training of 3 epochs\n" + TRACEBACK
    assert DEBUGGER.debug(write(tmp_path, text)).verdict is Verdict.UNHEALTHY


def test_a_service_that_runs_out_of_memory_is_a_crash(tmp_path: Path) -> None:
    text = SERVICES["uvicorn"] + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert DEBUGGER.debug(write(tmp_path, text)).verdict is Verdict.UNHEALTHY


TASKS = [
    ("1.1", "Project scaffolding", "done", "2026-06-02"),
    ("1.2", "Retry loop: evict on torch.cuda.OutOfMemoryError", "open", "2026-06-02"),
    ("1.3", "Killed jobs: exits with return code = 1", "open", "2026-06-03"),
    ("1.4", "NCCL timeout on the second node", "open", "2026-06-04"),
]


@pytest.mark.parametrize(("separator", "name"), [(",", "progress.csv"), ("\t", "tasks.tsv"), (";", "log.csv")])
def test_an_error_named_in_a_cell_of_a_table_is_no_crash(tmp_path: Path, separator: str, name: str) -> None:
    rows = [("task id", "task", "status", "date added"), *TASKS]
    path = write(tmp_path, "".join(separator.join(row) + "\n" for row in rows), name)
    with pytest.raises(UnreadableLogError):
        DEBUGGER.debug(path)


def test_an_error_behind_a_table_of_texts_is_a_crash(tmp_path: Path) -> None:
    rows = [("task id", "task", "status", "date added"), *TASKS]
    path = write(tmp_path, "".join(",".join(row) + "\n" for row in rows) + TRACEBACK, "progress.csv")
    assert DEBUGGER.debug(path).verdict is Verdict.UNHEALTHY


def messages(**beside: float) -> list[dict[str, object]]:
    return [
        {"author": "Analyst", "message": f"what was said about the market, part {n}", "score": 0.95 - n / 50, **beside}
        for n in range(40)
    ]


@pytest.mark.parametrize("key", ["messages", "Nachrichten", "conversation", "samples"])
@pytest.mark.parametrize("indent", [None, 2])
def test_scores_beside_texts_are_no_series_of_a_run(tmp_path: Path, key: str, indent: int | None) -> None:
    path = write(tmp_path, json.dumps({key: messages(timestamp=1.0)}, indent=indent), "train_history.json")
    with pytest.raises(UnreadableLogError):
        DEBUGGER.debug(path)


def test_texts_beside_the_steps_of_a_run_do_not_hide_its_series(tmp_path: Path) -> None:
    rounds = [{"epoch": n, "loss": 3.0 / (n + 1) + 0.5, "note": "what was said in this round"} for n in range(40)]
    path = write(tmp_path, json.dumps({"title": "a run", "rounds": rounds}, indent=2), "train_history.json")
    assert DEBUGGER.debug(path).verdict is Verdict.HEALTHY
