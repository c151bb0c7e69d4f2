from __future__ import annotations

import functools
import http.server
import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.cli import main as cli


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        cli.run(["debug", *arguments])
    out, err = capsys.readouterr()
    return int(str(caught.value.code)), out, err


@pytest.fixture
def healthy(tmp_path: Path) -> str:
    path = tmp_path / "healthy.jsonl"
    path.write_text("".join(json.dumps({"step": n, "loss": 5.0 / (n + 1) + 1}) + "\n" for n in range(120)))
    return str(path)


@pytest.fixture
def broken(tmp_path: Path) -> str:
    path = tmp_path / "broken.jsonl"
    rows = [{"step": n, "loss": 5.0 / (n + 1) + 1 if n < 90 else float("nan")} for n in range(120)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_healthy_run_exits_zero(capsys: pytest.CaptureFixture[str], healthy: str) -> None:
    code, out, _ = run(capsys, healthy)
    assert code == 0
    assert "HEALTHY" in out


def test_findings_exit_one_and_say_what_to_do(capsys: pytest.CaptureFixture[str], broken: str) -> None:
    code, out, _ = run(capsys, broken)
    assert code == 1
    assert "UNHEALTHY" in out
    assert "likely cause" in out


@pytest.mark.parametrize("argument", ["/no/such/file", os.devnull])
def test_unusable_input_exits_two_with_one_line(capsys: pytest.CaptureFixture[str], argument: str) -> None:
    code, out, err = run(capsys, argument)
    assert (code, out) == (2, "")
    assert err.startswith("holdfast: ")
    assert "Traceback" not in err


def test_a_wrong_option_exits_two(capsys: pytest.CaptureFixture[str], healthy: str) -> None:
    assert run(capsys, healthy, "--format", "pdf")[0] == 2
    assert run(capsys, healthy, "--fail-on", "never")[0] == 2


def test_fail_on_critical_lets_warnings_pass(capsys: pytest.CaptureFixture[str], broken: str) -> None:
    code, out, _ = run(capsys, broken, "--format", "json")
    severities = {finding["severity"] for finding in json.loads(out)["runs"][0]["findings"]}
    assert "critical" in severities
    assert code == 1
    assert run(capsys, broken, "--fail-on", "critical")[0] == 1


def test_json_is_the_published_object_and_nothing_else_on_standard_output(
    capsys: pytest.CaptureFixture[str], broken: str, healthy: str
) -> None:
    _, out, _ = run(capsys, broken, healthy, "--format", "json")
    data = json.loads(out)
    assert data["schema"] == 1
    assert [entry["verdict"] for entry in data["runs"]] == ["unhealthy", "healthy"]
    finding = data["runs"][0]["findings"][0]
    assert (finding["failure"], finding["first_step"]) == ("nan", 90)
    assert finding["causes"][0]["remediation"]


def test_reports_go_to_a_file_in_every_format(capsys: pytest.CaptureFixture[str], broken: str, tmp_path: Path) -> None:
    for form in ("text", "json", "markdown", "html", "junit"):
        target = tmp_path / f"report.{form}"
        code, out, err = run(capsys, broken, "--format", form, "--output", str(target))
        assert (code, out) == (1, "")
        assert "unhealthy" in err
        assert target.stat().st_size > 100
    ElementTree.parse(tmp_path / "report.junit")


def test_a_report_that_cannot_be_written_exits_two(capsys: pytest.CaptureFixture[str], healthy: str) -> None:
    code, _, err = run(capsys, healthy, "--output", "/no/such/folder/report.txt")
    assert code == 2
    assert "--output" in err


def test_a_failure_the_compared_run_shares_is_no_failure(
    capsys: pytest.CaptureFixture[str], broken: str, healthy: str
) -> None:
    assert run(capsys, broken, "--compare", broken)[0] == 0
    assert run(capsys, broken, "--compare", healthy)[0] == 1


def test_the_learned_ranker_gives_causes_too(capsys: pytest.CaptureFixture[str], broken: str) -> None:
    code, out, _ = run(capsys, broken, "--attribution", "learned", "--format", "json")
    assert code == 1
    assert json.loads(out)["runs"][0]["findings"][0]["causes"]


def test_help_shows_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "Examples" in out
    assert "Exit codes" in out


def test_watch_prints_what_is_new_as_the_log_grows_and_ends_on_interrupt(broken: str, tmp_path: Path) -> None:
    lines = Path(broken).read_text().splitlines(keepends=True)
    path = tmp_path / "live.jsonl"
    path.write_text("".join(lines[:60]))
    entry = "from holdfast.cli.main import run; run()"
    command = [sys.executable, "-c", entry, "debug", str(path), "--watch", "--interval", "0.05"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert "healthy at step 59" in process.stdout.readline()
        with path.open("a") as stream:
            stream.write("".join(lines[60:]))
        seen = ""
        while "Not a number" not in seen:
            line = process.stdout.readline()
            assert line, seen
            seen += line
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 1
    finally:
        process.kill()
        process.communicate()


def test_watch_with_json_prints_one_object_per_line(broken: str) -> None:
    entry = "from holdfast.cli.main import run; run()"
    command = [sys.executable, "-c", entry, "debug", broken, "--watch", "--json", "--interval", "0.05"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        seen = json.loads(process.stdout.readline())
        assert (seen["verdict"], seen["runs"][0]["path"]) == ("unhealthy", broken)
    finally:
        process.kill()
        process.communicate()


def test_a_page_cannot_be_watched(capsys: pytest.CaptureFixture[str], healthy: str) -> None:
    code, _, err = run(capsys, healthy, "--watch", "--format", "html")
    assert code == 2
    assert "--watch prints only text or JSON" in err


def test_the_flag_for_json_is_the_format(capsys: pytest.CaptureFixture[str], healthy: str) -> None:
    assert run(capsys, healthy, "--json") == run(capsys, healthy, "--format", "json")


def test_a_terminal_gets_colours_and_a_pipe_does_not(broken: str) -> None:
    command = [sys.executable, "-c", "from holdfast.cli.main import run; run()", "debug", broken]
    piped = subprocess.run(command, capture_output=True, check=False)
    assert b"\x1b[" not in piped.stdout
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, stdout=follower, stderr=subprocess.DEVNULL, env=environment)
    os.close(follower)
    output = b""
    try:
        while chunk := os.read(leader, 4096):
            output += chunk
    except OSError:
        pass  # The other end of the terminal closed: all was read.
    finally:
        os.close(leader)
        process.wait(timeout=60)
    assert b"\x1b[" in output
    assert b"UNHEALTHY" in output


def test_standard_input_is_read_where_the_path_is_a_dash(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(broken).read_bytes())))
    code, out, _ = run(capsys, "-")
    assert code == 1
    assert "standard input" in out


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_url_is_fetched_and_read(capsys: pytest.CaptureFixture[str], broken: str, served: str) -> None:
    code, out, _ = run(capsys, f"{served}/{Path(broken).name}")
    assert code == 1
    assert "UNHEALTHY" in out


def test_a_url_that_gives_nothing_exits_two(capsys: pytest.CaptureFixture[str], served: str) -> None:
    code, _, err = run(capsys, f"{served}/nothing.log")
    assert code == 2
    assert "cannot be fetched" in err


@pytest.mark.parametrize("source", ["-", "https://example.org/train.log"])
def test_what_cannot_be_followed_is_not_watched(capsys: pytest.CaptureFixture[str], source: str) -> None:
    code, _, err = run(capsys, source, "--watch")
    assert code == 2
    assert "only files and folders can be watched" in err


def test_a_folder_of_many_runs_opens_with_one_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for number in range(60):
        bad = number == 25
        rows = ({"step": n, "loss": float("nan") if bad and n > 30 else 5.0 / (n + 1) + 1} for n in range(40))
        (tmp_path / f"run{number:03d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = run(capsys, str(tmp_path))
    assert code == 1
    assert out.startswith("60 runs: 1 unhealthy, 59 healthy (1 nan)\n")
    assert "run024.jsonl" not in out
    assert "run025.jsonl: UNHEALTHY" in out
    assert "59 healthy runs are not listed" in out
