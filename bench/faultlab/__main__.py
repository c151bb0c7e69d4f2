"""``python -m bench.faultlab generate|label|fit|score``."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.faultlab.generate import default_folder, generate, label_again


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.faultlab", description=__doc__)
    parser.add_argument("command", choices=("generate", "label", "fit", "score"))
    parser.add_argument("--runs-dir", type=Path, default=None, help="where the runs are cached")
    parser.add_argument("--draw", type=int, default=0, help="0: the published runs; others: new runs of the same kind")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--per-cause", type=int, default=5, help="how many runs a cause gets in each half, at least")
    parser.add_argument("--limit", type=int, default=None, help="train only the first n pairs")
    parser.add_argument("--half", choices=("tune", "report"), default=None)
    parser.add_argument(
        "--foreign",
        type=Path,
        action="append",
        default=[],
        help="a folder of bench/foreign_labels.jsonl's logs; repeat",
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.runs_dir or default_folder(arguments.draw)
    if arguments.command == "generate":
        count = generate(
            folder,
            draw=arguments.draw,
            half=arguments.half,
            per_cause=arguments.per_cause,
            processes=arguments.processes,
            limit=arguments.limit,
        )
        print(f"{count} runs in {folder}")
        return
    if arguments.command == "label":
        print(f"{label_again(folder, draw=arguments.draw)} labels changed")
        return
    if arguments.command == "fit":
        from bench.faultlab.fit import fit, tuning_folders

        print(fit(tuning_folders(), foreign=arguments.foreign))
        return
    from bench.faultlab.score import main as score

    score(folder, half=arguments.half or "report", as_json=arguments.json, foreign=arguments.foreign)


if __name__ == "__main__":
    main()
