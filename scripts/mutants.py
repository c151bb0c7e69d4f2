"""Break the code in small ways, one at a time, and count how often its tests notice.

A mutant is one change by one of Cosmic Ray's operators to one place in a package, drawn at random from all of them. The
tests that execute its line run against it in a copy of the project; a mutant on a line that no test executes survives.
Prints each survivor with its line before and after, and fails if fewer than ``--at-least`` were noticed.

    python scripts/mutants.py order coordinate checkpoint --sample 60
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import coverage
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parent.parent
# Annotations are never evaluated and removing a protocol's decorator changes nothing: such mutants are meaningless.
LEFT_OUT = ("BitOr", "RemoveDecorator", "VariableReplacer", "VariableInserter", "ReplaceUnaryOperator_Delete_USub")
BESIDE = {"checkpoint": "faults/test_checkpoint_*.py"}  # quick ones only: those of other packages start servers
MAX_TESTS = 80  # test functions per mutant: some lines are executed by hundreds
SECONDS = 240  # per mutant: an endless loop counts as noticed


@dataclass(frozen=True)
class Mutant:
    """One change: an operator, applied to its n-th place in a module."""

    module: Path
    operator: str
    occurrence: int
    line: int


def candidates(package: Path) -> list[Mutant]:
    """Return every change that an operator can make to a package."""
    found: list[Mutant] = []
    names = [name for name in operator_names() if not any(part in name for part in LEFT_OUT)]
    operators = [(name, get_operator(name)()) for name in names]
    for module in sorted(package.rglob("*.py")):
        nodes = list(ast_nodes(get_ast_from_path(module)))
        for name, operator in operators:
            places = [start for node in nodes for start, _ in operator.mutation_positions(node)]
            found += [Mutant(module, name, number, line) for number, (line, _) in enumerate(places)]
    return found


def pytest(
    tree: Path, *arguments: str, under: tuple[str, ...] = (), seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy of the project."""
    command = [sys.executable, *under, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "not soak", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )


def tests_by_line(tree: Path, name: str) -> dict[Path, dict[int, list[str]]]:
    """Return, for every module of a package, the test functions that execute each of its lines."""
    settings, data = tree / "mutants.coveragerc", tree / "mutants.coverage"
    settings.write_text(f"[run]\ndynamic_context = test_function\nsource = src/holdfast/{name}\ndata_file = {data}\n")
    beside = (tree / "tests").glob(BESIDE[name]) if name in BESIDE else ()
    suites = [f"tests/{name}", *sorted(str(path.relative_to(tree)) for path in beside)]
    done = pytest(tree, *suites, under=("-m", "coverage", "run", f"--rcfile={settings}"))
    if done.returncode:
        sys.exit(f"the tests of {name} fail before anything is changed:\n{done.stdout[-2_000:]}")
    listed = pytest(tree, "--collect-only", *suites).stdout.splitlines()
    functions = {line.partition("[")[0] for line in listed if "::" in line}
    read = coverage.CoverageData(basename=str(data))
    read.read()
    return {
        ROOT / Path(file).relative_to(tree): {
            line: sorted(functions.intersection(map(test_id, contexts)))
            for line, contexts in read.contexts_by_lineno(file).items()
        }
        for file in read.measured_files()
    }


def test_id(context: str) -> str:
    """Return pytest's name for a test, from the dotted name that coverage gives it."""
    parts = context.split(".")
    place = next((number for number, part in enumerate(parts) if part.startswith("test_")), len(parts))
    return "/".join(parts[: place + 1]) + ".py::" + "::".join(parts[place + 1 :])


def survives(mutant: Mutant, tests: list[str], trees: list[Path]) -> bool:
    """Return whether every test that executes the mutant's line still passes with it."""
    if not tests:
        return True
    tree = trees.pop()
    module = tree / mutant.module.relative_to(ROOT)
    original = module.read_text(encoding="utf-8")
    chosen = random.Random(mutant.line).sample(tests, min(len(tests), MAX_TESTS))
    try:
        module.write_text(mutated(mutant), encoding="utf-8")
        return pytest(tree, "-x", *sorted(chosen), seconds=SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        module.write_text(original, encoding="utf-8")
        trees.append(tree)


def mutated(mutant: Mutant) -> str:
    """Return a module's text with the change in it."""
    text = mutate_code(mutant.module.read_text(encoding="utf-8"), get_operator(mutant.operator)(), mutant.occurrence)
    assert text is not None
    return text


def show(mutant: Mutant) -> str:
    """Return where the change is, and the line before and after it."""
    before, after = mutant.module.read_text(encoding="utf-8").splitlines(), mutated(mutant).splitlines()
    number = next((n for n, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), mutant.line - 1)
    place = f"{mutant.module.relative_to(ROOT)}:{number + 1}"
    return f"{place}\n  - {before[number].strip()}\n  + {after[number].strip()}"


def main() -> int:
    """Draw mutants of the given packages, try them, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+", help="packages of holdfast, such as order")
    parser.add_argument("--sample", type=int, default=60, help="mutants per package")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants tried at a time")
    parser.add_argument("--at-least", type=float, default=0.85, help="fraction that must be noticed in every package")
    given = parser.parse_args()
    enough = True
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as place:
        trees = [Path(place) / str(number) / "project" for number in range(given.jobs)]
        for tree in trees:
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv*", "build", "site", "__pycache__"))
        for name in given.packages:
            lines = tests_by_line(trees[0], name)
            everything = candidates(ROOT / "src" / "holdfast" / name)
            drawn = random.Random(given.seed).sample(everything, min(given.sample, len(everything)))
            tests = [lines.get(mutant.module, {}).get(mutant.line, []) for mutant in drawn]
            with ThreadPoolExecutor(given.jobs) as pool:
                alive = pool.map(lambda mutant, chosen: survives(mutant, chosen, trees), drawn, tests)
                left = [mutant for mutant, survived in zip(drawn, alive, strict=True) if survived]
            noticed = 1 - len(left) / len(drawn)
            enough = enough and noticed >= given.at_least
            print(f"{name}: {len(drawn) - len(left)} of {len(drawn)} mutants noticed ({noticed:.0%})")
            print("\n".join(map(show, left)), flush=True)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
