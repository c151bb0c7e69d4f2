"""Print the lowest versions that ``pyproject.toml`` declares, as constraints for ``make test-lowest``.

What holdfast needs directly is pinned to its declared minimum; what only the tests and checks need is left to pip.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import tomllib

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"

TEST_ONLY = {"all", "bench", "dev"}
"""Extras that users do not install to run holdfast."""

MINIMUM = re.compile(r"(?P<name>[\w.-]+)(\[[\w,]+\])?>=(?P<version>[\w.]+)$")


def lowest(requirements: list[str]) -> Iterator[str]:
    """Return ``name==version`` for each requirement; those on holdfast's own extras are passed over."""
    for requirement in requirements:
        if requirement.startswith("holdfast["):
            continue
        match = MINIMUM.match(requirement)
        if match is None:
            raise SystemExit(f"{PYPROJECT}: {requirement!r} declares no minimum; write it as name>=version")
        yield f"{match['name']}=={match['version']}"


def main() -> None:
    """Print one constraint per line, the core's first."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    groups = [project["dependencies"]]
    groups += [names for extra, names in project["optional-dependencies"].items() if extra not in TEST_ONLY]
    for group in groups:
        for pin in lowest(group):
            print(pin)


if __name__ == "__main__":
    main()
