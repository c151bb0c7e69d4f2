"""Two hosts and Redis from the documentation alone: its program and its commands, each host with its own address."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.coordinate_runs import wait_until
from tests.faults.coordinate_servers import why_not as why_no_server
from tests.faults.namespaces import Hosts, why_not

from holdfast.cli.main import run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coordinate.md").read_text()
DEADLINE = 240


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    reason = why_not() or why_no_server("redis")
    if reason is not None:
        pytest.skip(reason)
    hosts = Hosts(3)
    yield hosts
    hosts.close()


def documented(pattern: str) -> str:
    found = re.search(pattern, PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, pattern
    return found[1]


def test_every_command_copied_from_the_page_works_on_two_hosts(
    hosts: Hosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = documented(r"^### Two hosts and Redis, from scratch\n(.*?)^## ")
    program = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "work.py").write_text(program)

    def here(command: str) -> list[str]:
        words = shlex.split(command.replace("10.0.0.1", hosts.address(0)).replace("/shared", str(tmp_path)))
        if words[0] == "holdfast":
            return [sys.executable, "-c", "from holdfast.cli.main import run; run()", *words[1:]]
        return [sys.executable, *words[1:]] if words[0] == "python" else words

    server = subprocess.Popen(hosts.command(0, here(documented(r"^(redis-server [^\n]*)$"))), stdout=subprocess.DEVNULL)
    workers: list[subprocess.Popen[str]] = []
    try:
        wait_until((tmp_path / "appendonlydir").exists, "the server")
        command = here(documented(r"^(python work\.py [^\n]*)$"))
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        workers += [subprocess.Popen(hosts.command(number, command), cwd=tmp_path, **pipes) for number in (1, 2)]
        wait_until((tmp_path / "job" / "job.json").exists, "the job")
        watch = here(documented(r"`(holdfast watch redis://10[^\n`]*)`"))
        watched = subprocess.run(hosts.command(2, watch), capture_output=True, text=True, timeout=DEADLINE, check=False)
        assert "job sums" in watched.stdout, watched.stderr
        said = [worker.communicate(timeout=DEADLINE) for worker in workers]
        for output, errors in said:
            assert f"100 in all, sum {sum(range(100_000))}" in output, errors
        assert sum(int(output.split()[0]) for output, _ in said) == 100
        for documented_command in re.findall(r"^holdfast (job [^\n#]*)", PAGE, re.MULTILINE):
            words = documented_command.replace("runs/captions", str(tmp_path / "job")).split()
            with pytest.raises(SystemExit) as ended:
                run(words)
            assert ended.value.code == 0
        assert "100 of 100" in capsys.readouterr().out
    finally:
        everyone: list[subprocess.Popen[Any]] = [*workers, server]
        for process in everyone:
            process.kill()
            process.communicate()
