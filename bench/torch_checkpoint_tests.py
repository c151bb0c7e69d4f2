"""Torch's own checkpoint tests, run with torch's reader and with ours in its place; prints both columns.

The tests come from Debian's source package of PyTorch, downloaded with ``apt-get source`` into a temporary folder, or
from a source tree that ``--source`` names. Nothing of them is kept. In the second column every process that a test
starts runs inside ``holdfast.checkpoint.installed()``. In both columns the ranks of a test are forked, not spawned, so
that they need not import torch again: ten times faster. The exit code is 1 when a test passes with torch's reader and
not with ours.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

TESTS = Path("test/distributed/checkpoint")
TIMEOUT_SECONDS = 600
INSTALL = """
import holdfast.checkpoint
installed = holdfast.checkpoint.installed(warn_not_loaded=False)
installed.__enter__()
"""
FORK = """
import torch.multiprocessing
from torch.testing._internal.common_distributed import MultiProcessTestCase

MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(
    torch.multiprocessing.get_context("fork").Process
)
"""


def archive_of_debian() -> str:
    """Return where this machine's apt takes Debian's packages from."""
    listed = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    return next(uri for uri in found if uri.rstrip("/").endswith("/debian"))


def download(folder: Path, suite: str) -> Path:
    """Unpack the checkpoint tests of Debian's source package, and return the source tree."""
    (folder / "sources").mkdir()
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "sources" / "debian.sources").write_text(
        textwrap.dedent(
            f"""\
            Types: deb-src
            URIs: {archive_of_debian()}
            Suites: {suite}
            Components: main
            Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
            """
        )
    )
    options = [
        f"-oDir::State::lists={folder}/lists",
        "-oDir::Etc::sourcelist=/dev/null",
        f"-oDir::Etc::sourceparts={folder}/sources",
    ]
    for command in (["update"], ["source", "--download-only", "pytorch"]):
        subprocess.run(["apt-get", *options, *command], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("pytorch_*.orig.tar.*")
    subprocess.run(["tar", "-xf", archive, "--wildcards", f"*/{TESTS}/*"], cwd=folder, check=True)
    (tests,) = folder.glob(f"*/{TESTS}")
    return tests.parents[2]


def outcomes(test: Path, folder: Path, *, ours: bool) -> dict[str, str]:
    """Run one file of tests; the outcome of each test."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    paths = [str(folder / "ours")] * ours + [str(folder / "both"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, "-m", "pytest", test.name, "-q", "-p", "no:cacheprovider", "-p", "forked_ranks"]
    command.append(f"--junit-xml={report}")
    try:
        subprocess.run(
            command, cwd=test.parent, env=environment, check=False, timeout=TIMEOUT_SECONDS, capture_output=True
        )
    except subprocess.TimeoutExpired:
        return {test.name: "timed out"}
    if not report.exists():
        return {test.name: "not collected"}
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[f"{test.name}::{case.get('classname')}::{case.get('name')}"] = kinds[0] if kinds else "passed"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, help="a source tree of PyTorch; Debian's is downloaded without it")
    parser.add_argument("--suite", default="trixie", help="the release of Debian to take the source from")
    parser.add_argument("--only", nargs="*", default=[], help="parts of file names to run")
    parser.add_argument("--quick", action="store_true", help="the file system tests only")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    options = parser.parse_args()
    if importlib.util.find_spec("expecttest") is None:
        parser.error("torch's tests need expecttest: pip install expecttest")
    only = options.only or (["test_file_system", "test_save_load_api"] if options.quick else [""])
    lost: list[str] = []
    totals: dict[str, collections.Counter[str]] = {"torch": collections.Counter(), "holdfast": collections.Counter()}
    with tempfile.TemporaryDirectory(prefix="holdfast-torch-tests-") as name:
        folder = Path(name)
        for place, content in (("ours/sitecustomize.py", INSTALL), ("both/forked_ranks.py", FORK)):
            (folder / place).parent.mkdir()
            (folder / place).write_text(content)
        source = options.source or download(folder, options.suite)
        for test in sorted((source / TESTS).rglob("test_*.py")):
            if not any(part in test.name for part in only):
                continue
            columns = {side: outcomes(test, folder, ours=side == "holdfast") for side in totals}
            counts = {side: collections.Counter(found.values()) for side, found in columns.items()}
            for side, counted in counts.items():
                totals[side] += counted
            print(f"{test.name:<44} torch {dict(counts['torch'])}  holdfast {dict(counts['holdfast'])}", flush=True)
            lost += [
                f"{case}: {columns['holdfast'].get(case, 'not run')}"
                for case, outcome in columns["torch"].items()
                if outcome == "passed" and columns["holdfast"].get(case) != "passed"
            ]
    for case in lost:
        print("passes with torch's reader, not with ours:", case)
    figures = {f"{side}: {outcome}": count for side, counted in totals.items() for outcome, count in counted.items()}
    figures["pass with torch's reader, fail with ours"] = len(lost)
    if options.json:
        print(json.dumps({"figures": figures, "about": {"source": str(options.source or f"Debian {options.suite}")}}))
    else:
        print(figures)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
