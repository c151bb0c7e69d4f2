"""Print constraints that pin every direct dependency to the lowest version `pyproject.toml` declares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)(?:\[[^\]]*\])?>=(?P<version>[0-9][0-9.]*)")
# What tests and benches use, not holdfast itself.
NOT_OURS = {"bench", "dev"}


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *(line for extra in extras.keys() - NOT_OURS for line in extras[extra])]
    lowest = {match["name"].lower(): match["version"] for match in map(REQUIREMENT.match, declared) if match}
    sys.stdout.writelines(f"{name}=={version}\n" for name, version in sorted(lowest.items()))


if __name__ == "__main__":
    main()
