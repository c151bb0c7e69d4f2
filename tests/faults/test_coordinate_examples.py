"""The Slurm and Kubernetes examples: linted, held to their schemas, and run, with a preemption, on real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.faults.coordinate_servers import Server, why_not
from tests.forking import run_script

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WORKER = EXAMPLES / "leased_worker.py"
BATCH = EXAMPLES / "slurm" / "leased.sbatch"
DEADLINE = 120.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    reason = why_not("redis")
    if reason is not None:
        pytest.skip(reason)
    server = Server("redis", tmp_path / "server")
    yield server
    server.kill()


def wait_for(condition: Any) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def outputs(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("part-*.json"))


def test_the_batch_script_is_sound_shell_and_its_directives_are_slurms() -> None:
    assert subprocess.run(["bash", "-n", str(BATCH)], check=False).returncode == 0
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", str(BATCH)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    lines = BATCH.read_text().splitlines()
    directives = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(number < first_command for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    names = {directive.removeprefix("--").partition("=")[0] for directive in directives}
    known = {"job-name", "array", "ntasks", "cpus-per-task", "time", "requeue", "open-mode", "signal"}
    assert names == known


def test_a_preempted_array_task_is_requeued_and_goes_on(server: Server, tmp_path: Path) -> None:
    """As Slurm runs it: the signal to the batch shell, a requeue by scontrol, the same script again."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/requeued\n')
    (tools / "scontrol").chmod(0o755)
    (tools / "python").write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    (tools / "python").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "STORE": server.address,
        "FOLDER": str(tmp_path / "shared"),
        "WORKER": str(WORKER),
        "SLURM_JOB_ID": "7",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "3",
        "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    first = subprocess.Popen(["bash", str(BATCH)], env=environment, stdout=subprocess.PIPE)
    wait_for(lambda: outputs(tmp_path / "shared"))
    first.send_signal(signal.SIGUSR1)
    assert first.wait(DEADLINE) == 0
    first.communicate()
    done_before = len(outputs(tmp_path / "shared"))
    if done_before < 100:  # it may have been done already
        assert (tmp_path / "requeued").read_text() == "requeue 7_3\n"
    second = subprocess.run(["bash", str(BATCH)], env=environment, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert "100 chunks committed, 0 dead letters" in second.stdout
    counts = [sum(json.loads(file.read_text())) for file in outputs(tmp_path / "shared")]
    assert counts == [100 * 64] * 100


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / "kubernetes" / "leased.yaml").read_text()))


def test_the_manifests_fit_together() -> None:
    by_kind = {manifest["kind"]: manifest for manifest in manifests()}
    assert set(by_kind) == {"Service", "StatefulSet", "Job"}
    service, store, job = by_kind["Service"], by_kind["StatefulSet"], by_kind["Job"]
    labels = store["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels == store["spec"]["selector"]["matchLabels"]
    (worker,) = job["spec"]["template"]["spec"]["containers"]
    port = service["spec"]["ports"][0]["port"]
    assert f"--store=redis://{service['metadata']['name']}:{port}" in worker["args"]
    assert job["spec"]["completionMode"] == "Indexed"
    rule = job["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]
    assert (rule["containerName"], rule["values"]) == (worker["name"], [75])
    (redis,) = store["spec"]["template"]["spec"]["containers"]
    assert redis["args"][3:] == ["--appendonly", "yes", "--appendfsync", "always"]
    for spec in (store["spec"]["template"]["spec"], job["spec"]["template"]["spec"]):
        claims = [claim["metadata"]["name"] for claim in store["spec"]["volumeClaimTemplates"]]
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | set(claims)
        assert all(mount["name"] in volumes for pod in spec["containers"] for mount in pod["volumeMounts"])


@pytest.mark.parametrize("manifest", manifests(), ids=lambda manifest: manifest["kind"])
def test_each_manifest_obeys_kubernetes_own_schema(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.31", strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):  # the check itself can fail
        kubernetes_validate.validate({**manifest, "spec": {"nonsense": 1}}, "1.31", strict=True)


def test_a_worker_that_the_manifest_starts_takes_its_arguments(server: Server, tmp_path: Path) -> None:
    (job,) = (manifest for manifest in manifests() if manifest["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    given = dict(argument.partition("=")[::2] for argument in container["args"])
    given |= {"--store": server.address, "--folder": str(tmp_path / "shared"), "--samples": "400"}
    done = run_script(WORKER, *(f"{name}={value}" for name, value in given.items()))
    assert (done.returncode, done.stdout) == (0, "4 chunks committed, 0 dead letters\n"), done.stderr
