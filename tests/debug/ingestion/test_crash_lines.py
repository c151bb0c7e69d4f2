"""What a program prints when it dies is a finding; what training goes on after is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.debug import MLSystemsDebugger, RunReport, Severity, Verdict
from holdfast.errors import UnreadableLogError

DEBUGGER = MLSystemsDebugger(plugins=False)
TRAINING = "".join(f"step {n} loss {3.0 / (n + 1) + 1:.4f}\n" for n in range(60))
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    step()\n'

ENDINGS = {
    "traceback": (TRACEBACK + "ValueError: shapes do not match\n", "ValueError: shapes do not match"),
    "of a rank": (
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"t.py\", line 1, in f\n"
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
        "memory ran out",
    ),
    "syntax error": ('  File "t.py", line 3\n    def (\n        ^\nSyntaxError: invalid syntax\n', "invalid syntax"),
    "out of memory": ("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n", "memory ran out"),
    "a number for a message": (TRACEBACK + "KeyError: 404\n", "KeyError: 404"),
    "return code": ("[launch.py:321:sigkill_handler] ['python'] exits with return code = 1\n", "return code = 1"),
    "slurm": ("srun: error: node7: task 0: Exited with exit code 137\n", "exit code 137"),
    "killed": ("Killed\n", "the job was killed"),
    "wrong argument": ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --fp17\n", "--fp17"),
    "summed up": (
        TRACEBACK + "OSError: disk quota exceeded\nwandb: train/loss 1.43\nfinal loss: 1.4358\n",
        "disk quota exceeded",
    ),
    "time limit": ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024 DUE TO TIME LIMIT ***\n", "TIME LIMIT"),
    "nccl": (
        "[E ProcessGroupNCCL.cpp:821] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n",
        "a collective timed out",
    ),
    "a bar drawn once more": (
        TRACEBACK + "OSError: disk quota exceeded\nTraining: 67%|## | 61/90 [00:30<00:12, 5.45it/s, loss=1.05]\n",
        "disk quota exceeded",
    ),
    "glued to a bar": ("67%|###   | 60/90 [00:30<00:12, 5.45it/s]" + TRACEBACK + "OSError: full disk\n", "full disk"),
    "its own verdict": ("RESULTS\n\n❌ FAIL: Model cannot overfit\n   - Check architecture\n", "cannot overfit"),
    "says that it failed": ("Training failed with exit status none\n", "Training failed"),
    "says that it diverged": ("!! Loss diverged at step 59, stopping.\n", "diverged"),
    "panic": ("thread 'main' panicked at src/main.rs:9:5:\ncalled `Option::unwrap()` on a `None` value\n", "panicked"),
    "segmentation fault": ("Segmentation fault (core dumped)\n", "the job was killed"),
}  # fmt: skip


def diagnose(tmp_path: Path, text: str) -> RunReport:
    path = tmp_path / "train.log"
    path.write_text(text, encoding="utf-8")
    (run,) = DEBUGGER.debug(path).runs
    return run


@pytest.mark.parametrize("name", ENDINGS)
def test_a_log_that_ends_in_a_crash_is_unhealthy_and_quotes_it(tmp_path: Path, name: str) -> None:
    ending, quoted = ENDINGS[name]
    run = diagnose(tmp_path, TRAINING + ending)
    (crash,) = (finding.detection for finding in run.findings if finding.detection.failure.name == "crash")
    assert run.verdict is Verdict.UNHEALTHY
    assert crash.severity is Severity.CRITICAL
    assert any(quoted in evidence.claim for evidence in crash.evidence)


@pytest.mark.parametrize("name", ENDINGS)
def test_a_crash_without_any_training_is_a_finding_too(tmp_path: Path, name: str) -> None:
    assert diagnose(tmp_path, "loading data\n" + ENDINGS[name][0]).verdict is Verdict.UNHEALTHY


@pytest.mark.parametrize("name", ENDINGS)
def test_an_error_that_training_goes_on_after_is_no_crash(tmp_path: Path, name: str) -> None:
    more = "".join(f"step {n} loss {3.0 / (n + 1) + 1:.4f}\n" for n in range(60, 120))
    run = diagnose(tmp_path, TRAINING + ENDINGS[name][0] + more)
    assert run.verdict is Verdict.HEALTHY
    assert any("training continued" in note for note in run.notes)


@pytest.mark.parametrize(
    "line",
    [
        "UserWarning: error while loading the extension, ignored",
        "validation error: 0.12",
        "WARNING: 3 samples were skipped after an error",
        "Process finished with exit code 0",
        "The answer is: the king was killed by his brother.",
        "INFO: TracebackFilter installed",
    ],
)
def test_words_of_a_crash_in_other_lines_are_no_crash(tmp_path: Path, line: str) -> None:
    assert diagnose(tmp_path, TRAINING + line + "\n").verdict is Verdict.HEALTHY


def test_a_run_stopped_by_hand_is_told_and_not_blamed(tmp_path: Path) -> None:
    run = diagnose(tmp_path, TRAINING + TRACEBACK + "KeyboardInterrupt\n")
    assert [finding.detection.severity for finding in run.findings] == [Severity.INFO]
    assert run.verdict is Verdict.HEALTHY


def test_a_crash_belongs_to_the_run_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(TRAINING + ENDINGS["traceback"][0] + TRAINING, encoding="utf-8")
    first, second = DEBUGGER.debug(path).runs
    assert [[finding.detection.failure.name for finding in run.findings] for run in (first, second)] == [["crash"], []]
    # It was started again from the beginning: the run that crashed was never finished.
    assert first.findings[0].detection.severity is Severity.WARNING
    assert DEBUGGER.debug(path).verdict is Verdict.UNHEALTHY


def test_a_crash_of_a_run_that_was_resumed_and_got_beyond_it_is_told_not_blamed(tmp_path: Path) -> None:
    rows = TRAINING.splitlines(keepends=True)
    half = len(rows) // 2
    text = "".join(rows[:half]) + ENDINGS["traceback"][0] + "".join(rows[half - 5 :])
    path = tmp_path / "train.log"
    path.write_text(text, encoding="utf-8")
    assert DEBUGGER.debug(path).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(("starts", "verdict"), [(1, Verdict.HEALTHY), (4, Verdict.HEALTHY)])
def test_start_upon_start_that_died_before_the_training_is_told_not_blamed(
    tmp_path: Path, starts: int, verdict: Verdict
) -> None:
    opening = "loading the data set and the encoder of the texts\n"
    path = tmp_path / "train.log"
    path.write_text((opening + ENDINGS["traceback"][0]) * starts + opening + TRAINING, encoding="utf-8")
    report = DEBUGGER.debug(path)
    assert report.verdict is verdict
    if starts > 1:
        assert f"{starts} of {starts + 1} starts" in report.runs[0].findings[0].detection.evidence[0].claim


def test_processes_of_one_start_that_all_died_are_one_start(tmp_path: Path) -> None:
    opening = "loading the data set and the encoder of the texts\n"
    path = tmp_path / "train.log"
    path.write_text(opening * 8 + ENDINGS["traceback"][0] * 8 + opening + TRAINING, encoding="utf-8")
    assert DEBUGGER.debug(path).verdict is Verdict.HEALTHY


CAUSES = {
    "CUDA out of memory. Tried to allocate 20.00 MiB": ("RuntimeError", "out_of_memory"),
    "[Errno 28] No space left on device": ("OSError", "disk_full"),
    "No module named 'apex'": ("ModuleNotFoundError", "missing_dependency"),
    "[Errno 2] No such file or directory: 'a.pkl'": ("FileNotFoundError", "missing_file"),
    "Error(s) in loading state_dict for Net: size mismatch for fc.weight": ("RuntimeError", "checkpoint_mismatch"),
    "mat1 and mat2 shapes cannot be multiplied (3x8 and 5x5)": ("RuntimeError", "shape_mismatch"),
    "Shapes (None, 1) and (None, 10) are incompatible": ("ValueError", "shape_mismatch"),
    "input and target shapes do not match: input [3], target [4]": ("RuntimeError", "shape_mismatch"),
    "Expected 4D (unbatched) input to conv2d, but got input of size: [3]": ("RuntimeError", "shape_mismatch"),
    "crop_img/test_crop_99.jpg does not exist!": ("Exception", "missing_file"),
    "[Errno 101] Network is unreachable": ("OSError", "network_failure"),
    "too many values to unpack (expected 2)": ("ValueError", "program_error"),
    "Key 'lr' is not in struct": ("omegaconf.errors.ConfigAttributeError", "bad_configuration"),
    "Max retries exceeded with url: /api": ("requests.exceptions.ConnectionError", "network_failure"),
    "device-side assert triggered": ("RuntimeError: CUDA error", "device_failure"),
    "name 'results' is not defined": ("NameError", "program_error"),
}


@pytest.mark.parametrize("message", CAUSES)
def test_the_text_of_a_crash_names_its_cause(tmp_path: Path, message: str) -> None:
    error, cause = CAUSES[message]
    run = diagnose(tmp_path, TRAINING + TRACEBACK + f"{error}: {message}\n")
    (crash,) = (finding for finding in run.findings if finding.detection.failure.name == "crash")
    assert crash.causes[0].cause == cause
    assert crash.causes[0].confidence >= 0.75
    assert crash.causes[0].remediation


def test_a_crash_of_which_only_the_exit_code_is_known_has_no_cause(tmp_path: Path) -> None:
    run = diagnose(tmp_path, TRAINING + "srun: error: node7: task 0: Exited with exit code 1\n")
    assert [finding.causes for finding in run.findings] == [()]


def test_a_crash_before_a_trainer_whose_rows_are_placed_at_the_end_is_no_crash(tmp_path: Path) -> None:
    rows = "".join(f"{{'loss': {3 / (n + 1):.4f}, 'learning_rate': 1e-05, 'epoch': {n}.0}}\n" for n in range(20))
    failed = TRACEBACK + "ImportError: You need to have PEFT installed\n"
    assert diagnose(tmp_path, failed + rows).verdict is Verdict.HEALTHY
    assert diagnose(tmp_path, rows + failed).verdict is Verdict.UNHEALTHY
    assert diagnose(tmp_path, rows + failed + rows[-60:].splitlines()[-1] + "\n").verdict is Verdict.UNHEALTHY


def folded(text: str, width: int) -> str:
    """The text as PowerShell writes what a program prints to standard error: at most ``width`` characters per line."""
    lines: list[str] = []
    for line in text.splitlines():
        while len(line) > width:
            space = line.rfind(" ", 0, width) + 1
            lines.append(line[: space or width])
            line = line[space or width :]
        lines.append(line)
    return "\r\n".join(lines) + "\r\n"


@pytest.mark.parametrize("width", [18, 20, 22, 25, 31, 40, 60, 79, 120])
@pytest.mark.parametrize("training", ["", TRAINING])
def test_a_traceback_folded_at_the_width_of_a_window_is_a_crash(tmp_path: Path, width: int, training: str) -> None:
    path = tmp_path / "train_err.log"
    ending = folded("python : " + TRACEBACK + "UnicodeEncodeError: 'charmap' codec can't encode character\n", width)
    path.write_bytes((training.replace("\n", "\r\n") + ending).encode("utf-16"))
    (run,) = DEBUGGER.debug(path).runs
    (crash,) = (finding.detection for finding in run.findings)
    assert crash.severity is Severity.CRITICAL
    assert "UnicodeEncodeError: 'charmap' codec can't encode character" in crash.evidence[0].claim


def test_what_powershell_adds_to_a_traceback_is_part_of_it(tmp_path: Path) -> None:
    added = "    + CategoryInfo    \n   : NotSpeci  \n  fied: (Traceback    \n (most recent call    \n last)::String)\n"
    text = "python : Traceback \n(most recent call \nlast):\nAt line:1 char:1\n" + added + "OSError: full disk\n"
    run = diagnose(tmp_path, text)
    (finding,) = run.findings
    quotes = [evidence for evidence in finding.detection.evidence if evidence.signal.startswith("line ")]
    assert [quote.signal for quote in quotes] == ["line 3"]
    assert "OSError: full disk" in quotes[0].claim


@pytest.mark.parametrize(
    "line",
    [
        "AssertionError: Torch not compiled with CUDA enabled",
        "torch.cuda.CudaError: no kernel image is available",
        "[rank0]: ValueError: unknown optimizer",
        "KeyError: 'loss'",
    ],
)
def test_an_exception_that_is_the_last_thing_said_needs_no_traceback(tmp_path: Path, line: str) -> None:
    assert diagnose(tmp_path, f"start_time: today\n--Call--\n--Return--\n{line}\n\n").verdict is Verdict.UNHEALTHY
    assert diagnose(tmp_path, f"{TRAINING}{line}\n").verdict is Verdict.UNHEALTHY
    assert diagnose(tmp_path, f"{line}\n{TRAINING}").verdict is Verdict.HEALTHY
    assert diagnose(tmp_path, f"{TRAINING}{line}\nsaved the model\n").verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    "line",
    [
        "[2022-04-30 13:26:01,117][hydra.utils][ERROR] - Error instantiating model.Net : No module named 'ops'",
        "2024-01-02 10:00:01 ERROR trainer: no data",
        "2024-01-02 10:00:01,123 - root - CRITICAL - giving up",
        "ERROR:root:cannot open the dataset",
        "12:00:01 | FATAL | main | stopped",
    ],
)
def test_a_log_without_training_that_ends_in_a_logged_error_is_a_crash(tmp_path: Path, line: str) -> None:
    (finding,) = diagnose(tmp_path, f"[2022-04-30 13:26:00,000][main][INFO] - hello\n{line}\n").findings
    assert finding.detection.failure.name == "crash"
    assert line in finding.detection.evidence[0].claim


@pytest.mark.parametrize(
    "text",
    [
        "ERROR: pip's dependency resolver does not take into account all the packages that are installed\n",
        "[2022-04-30 13:26:01,117][main][ERROR] - one file is missing\n[2022-04-30 13:26:02,000][main][INFO] - done\n",
        "the ERROR rate is 12:00 to 13:00\n",
    ],
)
def test_an_error_that_something_follows_or_no_logger_wrote_is_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnreadableLogError):
        diagnose(tmp_path, text)


@pytest.mark.parametrize(
    "head",
    [
        "Exception ignored in: <bound method Session.__del__ of <tensorflow.Session object at 0x7f82ac2479b0>>",
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>",
        "Exception ignored on calling ctypes callback function: <function f at 0x7f>",
        "Exception ignored while finalizing file <_io.TextIOWrapper name='<stdout>'>:",
        "Error in atexit._run_exitfuncs:",
        "Error in sys.excepthook:",
    ],
)
def test_an_exception_that_could_not_be_raised_ended_nothing(tmp_path: Path, head: str) -> None:
    ignored = head + "\n" + TRACEBACK + "TypeError: 'NoneType' object is not callable\n"
    assert diagnose(tmp_path, TRAINING + "AUC: 0.823\n" + ignored).verdict is Verdict.HEALTHY
    raised = diagnose(tmp_path, TRAINING + ignored + TRACEBACK + "OSError: full disk\n")
    assert "full disk" in raised.findings[0].detection.evidence[0].claim


ROWS = [(n, 3.0 / (n + 1) + 1) for n in range(60)]
TABLES = {
    "metrics.csv": "step,loss\n" + "".join(f"{n},{loss:.4f}\n" for n, loss in ROWS),
    "loss.tsv": "EPOCH\tTRAIN_LOSS\n" + "".join(f"{n}\t{loss:.4f}\n" for n, loss in ROWS),
    "fastai.log": "epoch     train_loss  time\n" + "".join(f"{n:<10d}{loss:<12.6f}00:12\n" for n, loss in ROWS),
    "log.jsonl": "".join(f'{{"step": {n}, "loss": {loss:.4f}}}\n' for n, loss in ROWS),
    "train_loss.txt": "".join(f"{n} {loss:.4f}\n" for n, loss in ROWS),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("ending", ["traceback", "killed", "time limit", "out of memory"])
def test_a_table_that_a_crash_follows_is_unhealthy(tmp_path: Path, name: str, ending: str) -> None:
    path = tmp_path / name
    path.write_text(TABLES[name] + ENDINGS[ending][0])
    (run,) = DEBUGGER.debug(path).runs
    assert [finding.detection.failure.name for finding in run.findings] == ["crash"]
    assert f"line {TABLES[name].count(chr(10)) + 1}" in {e.signal for f in run.findings for e in f.detection.evidence}


@pytest.mark.parametrize("name", [name for name in TABLES if name != "train_loss.txt"])
def test_a_table_that_goes_on_after_an_error_is_no_crash(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    lines = TABLES[name].splitlines(keepends=True)
    path.write_text("".join(lines[:30]) + ENDINGS["traceback"][0] + "".join(lines[30:]))
    assert not [f for run in DEBUGGER.debug(path).runs for f in run.findings]


def test_the_lines_of_a_crash_behind_a_long_table_are_counted_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n" + "".join(f"{n},{3.0 / (n + 1) + 1:.9f}\n" for n in range(9000)) + "Killed\n")
    (run,) = DEBUGGER.debug(path).runs
    assert "line 9002" in {e.signal for f in run.findings for e in f.detection.evidence}


def test_a_crash_carries_the_last_step(tmp_path: Path) -> None:
    run = diagnose(tmp_path, TRAINING + TRACEBACK + "ValueError: shapes do not match\n")
    (finding,) = run.findings
    assert (finding.detection.first_step, finding.detection.last_step) == (59.0, 59.0)


def test_bare_numbers_after_an_error_say_that_the_program_went_on(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    path.write_text("begin\n" + TRACEBACK + "ValueError: no\n" + "".join(f"{n} 0.{n}\n" for n in range(10)))
    with pytest.raises(UnreadableLogError):
        DEBUGGER.debug(path)


def test_errors_to_the_end_of_a_log_without_training_are_a_crash(tmp_path: Path) -> None:
    error = "[12:00] ERROR: bad line\n, with msg: " + TRACEBACK + "Exception: a.jpg is not there\n"
    run = diagnose(tmp_path, "learning_rate : 0.0005\n" + 30 * error)
    assert [finding.detection.failure.name for finding in run.findings] == ["crash"]


@pytest.mark.parametrize(
    "line",
    [
        "ERROR during training: 'charmap' codec can't encode character",
        "Training failed: no such file",
        "❌ Error in training: index 3 is out of bounds",
    ],
)
def test_a_program_that_reports_what_its_training_raised_has_crashed(tmp_path: Path, line: str) -> None:
    rows = "".join(f"step {n} loss: {2 / (n + 1):.4f}\n" for n in range(20))
    (finding,) = diagnose(tmp_path, f"{rows}{line}\n").findings
    assert (finding.detection.failure.name, finding.detection.severity.value) == ("crash", "critical")
    assert line in finding.detection.evidence[0].claim
    assert diagnose(tmp_path, f"{line}\n{rows}").findings == ()


@pytest.mark.parametrize(
    "line",
    [
        "forrtl: error (200): program aborting due to window-CLOSE event",
        "2023-06-30 14:18:28 | WARNING | trainer | OOM: CUDA out of memory. Tried to allocate 2.00 GiB",
    ],
)
def test_an_abort_of_the_runtime_and_a_warning_of_no_memory_that_nothing_follows_are_crashes(
    tmp_path: Path, line: str
) -> None:
    (finding,) = diagnose(tmp_path, f"loading\n{line}\n").findings
    assert finding.detection.failure.name == "crash"


@pytest.mark.parametrize(("frame", "crashes"), [("site-packages/wandb/sdk/lib/router.py", False), ("train.py", True)])
def test_a_client_that_lost_its_connection_is_no_crash_of_the_run(tmp_path: Path, frame: str, crashes: bool) -> None:
    text = f'Traceback (most recent call last):\n  File "/env/{frame}", line 9, in loop\n    read()\n'
    text += (
        '  File "/env/asyncio/streams.py", line 190, in drain\n    raise error\nConnectionResetError: Connection lost\n'
    )
    (tmp_path / "debug.log").write_text(TRAINING + text)
    (run,) = DEBUGGER.debug(tmp_path / "debug.log").runs
    assert [finding.detection.failure.name for finding in run.findings] == ["crash"] * crashes


@pytest.mark.parametrize(("before", "crashed", "found"), [(0, 1, False), (200, 1, True), (0, 3, True)])
def test_an_exception_in_a_text_without_training_is_a_warning_if_it_came_late_or_again_and_again(
    tmp_path: Path, before: int, crashed: int, found: bool
) -> None:
    start = "[INFO] - loading a part of the data\n" * 70
    end = TRACEBACK + "ValueError: shapes do not match\n"
    path = tmp_path / "train.log"
    path.write_text("[INFO] - hello\n" * before + (start + end) * crashed + "[INFO] - Output dir: logs\n" * 90)
    if not found:
        with pytest.raises(UnreadableLogError):
            DEBUGGER.debug(path)
        return
    (finding,) = DEBUGGER.debug(path).runs[0].findings
    assert finding.detection.severity is Severity.WARNING
    assert "ValueError: shapes do not match" in finding.detection.evidence[0].claim


def test_an_exception_of_a_driver_is_its_end_though_its_workers_print_on(tmp_path: Path) -> None:
    worker = "(train pid=1383157) waiting for the next batch of samples\n"
    path = tmp_path / "ray.log"
    path.write_text(f"Started a local Ray instance.\n{worker}{TRACEBACK}ValueError: no data\n" + 200 * worker)
    (finding,) = DEBUGGER.debug(path).runs[0].findings
    assert finding.detection.severity is Severity.CRITICAL


@pytest.mark.parametrize(
    "line",
    [
        "FAIL: could not upload the artifacts",
        "0 tests FAILED, training is over",
        "Training failed to improve for 5 epochs, reducing the rate",
        "Loss diverged from the reference by 0.001",
        "Early stopping: training has converged",
    ],
)
def test_what_only_sounds_like_a_failed_training_is_none(tmp_path: Path, line: str) -> None:
    assert diagnose(tmp_path, f"{TRAINING}{line}\n").verdict is Verdict.HEALTHY


def _job(number: int, ending: str) -> str:
    start = f"Day {number} of the month\n" + "".join(f"loading part {number} of the data: {n}\n" for n in range(70))
    return start + ending


CANCELLED = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2025-08-21T02:53:05 ***\n"


def test_jobs_that_fail_one_after_the_other_are_told_of_though_the_last_was_cancelled(tmp_path: Path) -> None:
    failed = [_job(number, TRACEBACK + f"ValueError: no part {number}\n") for number in range(4)]
    run = diagnose(tmp_path, "".join(failed) + _job(9, CANCELLED))
    (crash,) = (finding.detection for finding in run.findings)
    assert run.verdict is Verdict.UNHEALTHY
    assert crash.evidence[0].claim.startswith("4 of 5 starts in this file ended in an error")
    assert "no part 3" in crash.evidence[0].claim


def test_a_cancelled_job_after_one_that_failed_is_no_failure(tmp_path: Path) -> None:
    run = diagnose(tmp_path, _job(1, TRACEBACK + "ValueError: no part\n") + _job(2, CANCELLED))
    assert run.verdict is Verdict.UNKNOWN


LAST_LINES = {
    "out_of_memory": (
        "srun: error: gpu01: task 0: Out Of Memory",
        "F0101 12:00:00.0 12 syncedmem.cpp:56] Check failed: error == cudaSuccess (2 vs. 0)  out of memory",
        "THCudaCheck FAIL file=/tmp/x.cu line=66 error=2 : out of memory",
        "Out of memory error on GPU 0. Cannot allocate 1.0GB memory on GPU 0",
        "OOMKilled",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 10. GiB for an array with shape (1,)",
    ),
    "killed": (
        "srun: error: node1: tasks 0-3: Killed",
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2021-01-01T00:00:00 DUE TO PREEMPTION ***",
        "=>> PBS: job killed: walltime 86423 exceeded limit 86400",
        "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
        "mpirun noticed that process rank 3 with PID 1234 on node n1 exited on signal 9 (Killed).",
        "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD",
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        "terminate called after throwing an instance of 'std::runtime_error'",
        "[1]    12345 killed     python train.py",
        "[2023-01-01 00:00:00,000] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 1234",
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 234 closing signal SIGTERM",
        "Command terminated by signal 9",
    ),
    "exit_code": (
        "a non-zero exit code. Per user-direction, the job has been aborted.",
        "Process 0 exit with status code 1.",
        "wandb: Waiting for W&B process to finish... (failed 1). Press Control-C to abort syncing.",
        "The replica master 0 exited with a non-zero status of 1.",
    ),
    "traceback": (
        "2021-01-01 00:00:00.000000: F tensorflow/core/platform/default/env.cc:73] Check failed: ret == 0 (11 vs. 0)",
        "[LightGBM] [Fatal] Label must be in [0, 3), but found 3 in label",
        "Error executing job with overrides: ['trainer=gpu']",
        "ERROR: LoadError: UndefVarError: foo not defined",
        "Execution halted",
        'Exception in thread "main" java.lang.NullPointerException',
        "panic: runtime error: index out of range [3] with length 3",
        "ray.exceptions.RayTaskError(ValueError): ray::train() (pid=1, ip=1)",
        "AssertionError",
    ),
    "logged_error": (
        "NaN loss encountered. Exiting.",
        "Batch 120: Invalid loss, terminating training",
        "cp: cannot create regular file: Disk quota exceeded",
        "wandb: ERROR Run abc errored: RuntimeError('x')",
        "Aborting training.",
        "2024-01-01 00:00:00,000 - trainer - ERROR - Training failed: shapes",
        "An error occurred: list index out of range",
        "Unexpected Exception: 'NoneType' object has no attribute 'reset'",
        "❌ Error: could not find dataset",
    ),
    "device_error": ("../Loss.cu:240: nll_loss: block: [0,0,0] Assertion `t >= 0 && t < n_classes` failed.",),
}


@pytest.mark.parametrize(("kind", "line"), [(kind, line) for kind, lines in LAST_LINES.items() for line in lines])
def test_what_programs_launchers_and_schedulers_die_with_is_a_crash_with_training_and_without(
    tmp_path: Path, kind: str, line: str
) -> None:
    for before in (TRAINING, "loading the data\n"):
        path = tmp_path / "job.log"
        path.write_text(f"{before}{line}\n", encoding="utf-8")
        report = DEBUGGER.debug(path)
        assert report.verdict is Verdict.UNHEALTHY
        assert [event["kind"] for log in DEBUGGER.read(path) for event in log.events] == [kind]


@pytest.mark.parametrize(
    "line",
    [
        "run.sh: line 3: python: command not found",
        "zsh: command not found: python",
        "/bin/sh: 1: torchrun: not found",
        "python3: can't open file '/home/u/train.py': [Errno 2] No such file or directory",
        "/var/spool/slurmd/job1234/slurm_script: line 12: /opt/conda/bin/activate: No such file or directory",
        "bash: ./train.sh: Permission denied",
        "/usr/bin/python: No module named torch.distributed.run",
        "srun: error: Unable to allocate resources: Invalid account or account/partition combination specified",
        "'python' is not recognized as an internal or external command,",
        r"python : D:\Work\.venv-1\Scripts\python.exe: can't open file ",
        r"C:\Program Files\Python311\python.exe: No module named torch",
        r"C:\Python\pythonw.exe: can't open file 'C:\\train.py': [Errno 2] No such file or directory",
    ],
)
def test_a_program_that_was_not_started_is_a_crash_where_nothing_was_trained(tmp_path: Path, line: str) -> None:
    (finding,) = diagnose(tmp_path, f"Mon Jan 1\n{line}\n").findings
    assert finding.detection.evidence[0].claim.startswith("the program could not be started")
    assert diagnose(tmp_path, f"{TRAINING}{line}\n").verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    "line",
    [
        "If you run out of memory on GPU, lower the batch size",
        "Found 12 NaN values in column age, dropped",
        "No NaN detected in the gradients",
        "2021-01-01 00:00:00.0: W tensorflow/stream_executor/dso_loader.cc:64] Could not load 'libcudart.so.11.0'; "
        "dlerror: libcudart.so.11.0: cannot open shared object file: No such file or directory",
    ],
)
def test_advice_and_reports_on_data_are_no_crash(tmp_path: Path, line: str) -> None:
    assert diagnose(tmp_path, f"{TRAINING}{line}\n").verdict is Verdict.HEALTHY
    with pytest.raises(UnreadableLogError):
        diagnose(tmp_path, f"loading the data\n{line}\n")


@pytest.mark.parametrize(
    "head",
    [
        "[rank0]: ",
        "node12: ",
        "(train pid=123) ",
        "[1,0]<stderr>:",
        "stderr: ",
        "2024-01-01T12:00:0{n}.000Z stderr F ",
        "a_1  | ",
    ],
)
def test_a_traceback_is_one_whatever_stands_before_each_of_its_lines(tmp_path: Path, head: str) -> None:
    lines = (TRACEBACK + "ValueError: no data").splitlines()
    text = "".join(head.format(n=n % 10) + line + "\n" for n, line in enumerate(lines))
    for before in (TRAINING, "loading the data\n"):
        (finding,) = diagnose(tmp_path, before + text).findings
        assert "ValueError: no data" in finding.detection.evidence[0].claim


def test_the_message_of_a_last_error_may_go_on_in_indented_lines(tmp_path: Path) -> None:
    error = (
        "omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct\n    full_key: a.lr\n    object_type=dict\n"
    )
    assert diagnose(tmp_path, TRAINING + error).verdict is Verdict.UNHEALTHY


def test_an_error_after_the_training_was_completed_is_none_of_its_own(tmp_path: Path) -> None:
    error = "2024-01-02 10:00:01 ERROR uploader: no connection\n"
    assert diagnose(tmp_path, f"{TRAINING}{error}").verdict is Verdict.UNHEALTHY
    assert diagnose(tmp_path, f"{TRAINING}Training completed in 3 h\n{error}").verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    ("line", "crashed"),
    [
        ('Error: Error("invalid type: null, expected f64", line: 33)', True),
        ("fatal: not a git repository", True),
        ("Errors: none", False),
    ],
)
def test_a_program_without_training_whose_last_word_is_an_error_ended_in_it(
    tmp_path: Path, line: str, crashed: bool
) -> None:
    path = tmp_path / "job.err"
    path.write_text("".join(f"warning: unused variable `x{n}`\n" for n in range(70)) + line + "\n")
    if crashed:
        assert DEBUGGER.debug(path).verdict is Verdict.UNHEALTHY
    else:
        with pytest.raises(UnreadableLogError):
            DEBUGGER.debug(path)


@pytest.mark.parametrize("width", [26, 40, 120])
def test_a_training_that_counts_no_success_has_failed(tmp_path: Path, width: int) -> None:
    head = "2026-04-09 11:39:12 | INFO     | trainer | "
    text = f"{head}loading\n{head}Training complete: 0 OK | 1 failed\n{head}Failed: ['a']\n"
    path = tmp_path / "train_err.txt"
    path.write_bytes(folded(text, width).encode("utf-16"))
    (finding,) = DEBUGGER.debug(path).runs[0].findings
    assert finding.detection.severity is Severity.CRITICAL
    assert "0 OK" in finding.detection.evidence[0].claim


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("Training finished: 0 succeeded, 3 failed", True),
        ("All 12 models failed", True),
        ("ERROR: all 5 training runs failed.", True),
        ("Training complete: 3 OK | 1 failed", False),
        ("Training complete: 10 OK | 0 failed", False),
        ("Training complete: 0 OK", False),
        ("All 3 retries failed, going on without a cache", False),
    ],
)
def test_what_a_program_counts_of_its_trainings_tells_whether_all_failed(
    tmp_path: Path, line: str, failed: bool
) -> None:
    verdict = diagnose(tmp_path, f"{TRAINING}{line}\n").verdict
    assert verdict is (Verdict.UNHEALTHY if failed else Verdict.HEALTHY)


@pytest.mark.parametrize(
    "frame",
    [
        "tornado/web.py",
        "flask/app.py",
        "uvicorn/protocols/http/h11_impl.py",
        "aiohttp/web_protocol.py",
        "django/core/handlers/exception.py",
    ],
)
def test_a_request_that_a_server_could_not_answer_is_no_crash_if_it_goes_on_serving(tmp_path: Path, frame: str) -> None:
    said = "".join(f"[I 12:{n:02}:00 ServerApp] Saving file at /notes.ipynb\n" for n in range(60))
    cause = '    Traceback (most recent call last):\n      File "/env/handlers.py", line 1, in get\n    KeyError: 404\n'
    error = (
        f'    Traceback (most recent call last):\n      File "/env/{frame}", line 9, in _execute\n'
        '      File "/env/handlers.py", line 3, in get\n    RuntimeError: Cannot write() after finish()\n'
    )
    path = tmp_path / "nohup.out"
    path.write_text(said + said + cause + "\n    During handling …\n\n" + error + said + said[:1500])
    with pytest.raises(UnreadableLogError):
        DEBUGGER.debug(path)
    path.write_text(said + error)
    assert DEBUGGER.debug(path).verdict is Verdict.UNHEALTHY


def test_starts_that_logged_errors_before_one_that_ended_well_are_told_not_blamed(tmp_path: Path) -> None:
    start = "2025-01-11 10:00:03,086 [INFO] Weights loaded from model.pth\n" * 2
    start += "2025-01-11 10:00:09,086 [INFO] Playing against itself\n" * 30
    error = "2025-01-11 10:01:03,086 [ERROR] Unexpected: name 'buffer' is not defined\n"
    ended = "2025-01-11 10:09:03,086 [INFO] Model saved as model.pth\n"
    run = diagnose(tmp_path, (start + error + ended) * 3 + start + ended)
    (finding,) = run.findings
    assert (run.verdict, finding.detection.severity) == (Verdict.UNKNOWN, Severity.INFO)
    assert finding.detection.evidence[0].claim.startswith("3 of 4 starts in this file ended in an error")
    with pytest.raises(UnreadableLogError):
        diagnose(tmp_path, start + (error + ended) * 3 + ended * 60)


COLLAPSES = (
    "COLLAPSE DETECTED. Stopping.",
    "Mode collapse detected!",
    "  COLLASSO RILEVATO. Non insistete: cambiate qualcosa.",
    "[monitor] Representation collapse has been detected at epoch 12",
    "Colapso del modelo detectado",
    "Effondrement détecté : arrêt",
    "Kollaps erkannt, Abbruch",
    "The training stops: divergence detected",
    "ERROR: Embeddings have collapsed!",
    "检测到模型坍塌",
    "Gradient explosion detected, stopping",
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("line", COLLAPSES)
def test_a_collapse_that_the_program_itself_announces_at_the_end_is_a_finding(
    tmp_path: Path, line: str, encoding: str
) -> None:
    path = tmp_path / "train.log"
    path.write_text(f"{TRAINING}\n{line}\n  1. lower the learning rate\nfigure: monitor.png\n", encoding=encoding)
    report = DEBUGGER.debug(path)
    assert report.verdict is Verdict.UNHEALTHY
    assert line.strip() in report.runs[0].findings[0].detection.evidence[0].claim


@pytest.mark.parametrize("line", COLLAPSES)
def test_a_collapse_that_training_goes_on_after_is_none(tmp_path: Path, line: str) -> None:
    later = "".join(f"step {n} loss {3.0 / (n + 1) + 1:.4f}\n" for n in range(60, 90))
    assert diagnose(tmp_path, f"{TRAINING}{line}\n{later}").verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    "line",
    [
        "No collapse detected",
        "collapse detected: False",
        "Collapse detection: enabled",
        "Nessun collasso: tutto bene",
        "KL divergence: 0.02",
        "collapsed 12 rows of the table",
    ],
)
def test_what_only_sounds_like_a_collapse_is_none(tmp_path: Path, line: str) -> None:
    assert diagnose(tmp_path, f"{TRAINING}{line}\n").verdict is Verdict.HEALTHY
