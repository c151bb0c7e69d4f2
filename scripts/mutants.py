"""Break the code in small ways, one at a time, and count how often its tests notice.

A mutant is one change by one of Cosmic Ray's operators to one place in a package, drawn at random from all of them. The
tests that execute its line run against it in a copy of the project (for a line executed on import, those that execute
the module); a mutant in a module that no test executes survives.
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
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import coverage
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parent.parent
# Annotations are never evaluated and removing a protocol's decorator changes nothing: such mutants are meaningless.
LEFT_OUT = ("BitOr", "RemoveDecorator", "VariableReplacer", "VariableInserter", "ReplaceUnaryOperator_Delete_USub")
BESIDE = {"checkpoint": "faults/test_checkpoint_*.py"}  # quick ones only: those of other packages start servers
MAX_TESTS = 150  # test functions per mutant: some lines are executed by hundreds
SECONDS = 240  # per run of a mutant's tests, and a quarter of it per test: an endless loop counts as noticed
# Few examples of every property notice most mutants; only those that are left need all of them.
EXAMPLES = (8, 30)
# Coverage by itself takes the first function whose name starts with "test" for the context; in a property test, that is
# one of Hypothesis's own. And a failing example is enough: it need not be made small.
PLUGIN = """
import coverage
import pytest
from hypothesis import HealthCheck, Phase, settings

for examples in (8, 30):
    settings.register_profile(
        f"mutants-{examples}",
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    if coverage.Coverage.current() is not None:
        coverage.Coverage.current().switch_context(item.nodeid)
    return (yield)
"""


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
    options = ["-q", "-p", "no:xdist", "-p", "mutants_plugin", "-m", "not soak", f"--timeout={SECONDS // 4}"]
    command = [sys.executable, *under, "-m", "pytest", *options, *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )


def tests_by_line(tree: Path, name: str) -> dict[Path, dict[int, list[str]]]:
    """Return, for every module of a package, the test functions that execute each of its lines.

    Line 0 has the tests that execute any line of the module's functions: those to run for what is executed on import.
    """
    settings, data = tree / "mutants.coveragerc", tree / "mutants.coverage"
    settings.write_text(f"[run]\nsource = src/holdfast/{name}\ndata_file = {data}\n")
    beside = (tree / "tests").glob(BESIDE[name]) if name in BESIDE else ()
    suites = [f"tests/{name}", *sorted(str(path.relative_to(tree)) for path in beside)]
    done = pytest(tree, *suites, under=("-m", "coverage", "run", f"--rcfile={settings}"))
    if done.returncode:
        sys.exit(f"the tests of {name} fail before anything is changed:\n{done.stdout[-2_000:]}")
    read = coverage.CoverageData(basename=str(data))
    read.read()
    found: dict[Path, dict[int, list[str]]] = {}
    for file in read.measured_files():
        lines = {
            line: sorted({test.partition("[")[0] for test in tests if test})
            for line, tests in read.contexts_by_lineno(file).items()
        }
        lines[0] = sorted({test for tests in lines.values() for test in tests})
        found[ROOT / Path(file).relative_to(tree)] = lines
    return found


def tests_of(mutant: Mutant, lines: dict[Path, dict[int, list[str]]]) -> list[str]:
    """Return the test functions that may notice a mutant."""
    known = lines.get(mutant.module, {0: []})
    return known.get(mutant.line) or known[0]


def survives(mutant: Mutant, tests: list[str], trees: list[Path]) -> bool:
    """Return whether every test that executes the mutant's line still passes with it."""
    if not tests:
        return True
    tree = trees.pop()
    module = tree / mutant.module.relative_to(ROOT)
    original = module.read_text(encoding="utf-8")
    own = [test for test in tests if f"/test_{mutant.module.stem}.py::" in test]
    others = [test for test in tests if test not in own]
    more = random.Random(mutant.line).sample(others, min(len(others), max(0, MAX_TESTS - len(own))))
    try:
        module.write_text(mutated(mutant), encoding="utf-8")
        profiles = (f"--hypothesis-profile=mutants-{examples}" for examples in EXAMPLES)
        return all(
            pytest(tree, "-x", profile, *own, *sorted(more), seconds=SECONDS).returncode == 0 for profile in profiles
        )
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


def compiles(mutant: Mutant) -> bool:
    """Return whether the changed module is Python: ``*`` in a list of parameters cannot become ``/``, for example."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            compile(mutated(mutant), mutant.module, "exec", dont_inherit=True)
        except SyntaxError:
            return False
    return True


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
            (tree / "mutants_plugin.py").write_text(PLUGIN)
        for name in given.packages:
            lines = tests_by_line(trees[0], name)
            everything = candidates(ROOT / "src" / "holdfast" / name)
            random.Random(given.seed).shuffle(everything)
            drawn = list(islice(filter(compiles, everything), given.sample))
            tests = [tests_of(mutant, lines) for mutant in drawn]
            left = 0
            with ThreadPoolExecutor(given.jobs) as pool:
                alive = pool.map(lambda mutant, chosen: survives(mutant, chosen, trees), drawn, tests)
                for mutant, chosen, survived in zip(drawn, tests, alive, strict=True):
                    if survived:
                        left += 1
                        print(f"{show(mutant)}\n  survives {len(chosen)} tests", flush=True)
            noticed = 1 - left / len(drawn)
            enough = enough and noticed >= given.at_least
            print(f"{name}: {len(drawn) - left} of {len(drawn)} mutants noticed ({noticed:.0%})", flush=True)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
