"""``python -m bench.faultlab generate|label|fit|score``."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.faultlab.generate import default_folder, generate, label_again


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.faultlab", description=__doc__)
    parser.add_argument("command", choices=("generate", "label", "fit", "score"))
    parser.add_argument("--runs-dir", type=Path, default=default_folder())
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=int, default=None, help="train only the first so many pairs")
    parser.add_argument("--half", choices=("tune", "report"), default="report")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "generate":
        count = generate(arguments.runs_dir, processes=arguments.processes, limit=arguments.limit)
        print(f"{count} runs in {arguments.runs_dir}")
        return
    if arguments.command == "label":
        print(f"{label_again(arguments.runs_dir)} labels changed")
        return
    if arguments.command == "fit":
        from bench.faultlab.fit import fit

        print(fit(arguments.runs_dir))
        return
    from bench.faultlab.score import main as score

    score(arguments.runs_dir, half=arguments.half, as_json=arguments.json)


if __name__ == "__main__":
    main()
