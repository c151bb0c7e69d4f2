"""A run that goes wrong, diagnosed from its log, with a page to look at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from holdfast.cli.demo import Row

__all__ = ["run"]


def run(folder: Path, say: Callable[[str], None]) -> list[Row]:
    """Train with a learning rate that is far too high, then ask what happened."""
    from holdfast.debug import MLSystemsDebugger, Reporter, ReportFormat

    log = folder / "too-hot.jsonl"
    _train_too_hot(folder, log)
    report = MLSystemsDebugger().debug(log)
    run_report = report.runs[0]
    finding = run_report.findings[0] if run_report.findings else None
    page = folder / "too-hot.html"
    page.write_text(Reporter().render(report, ReportFormat.HTML), encoding="utf-8")
    if finding is None:
        say("nothing was found")
        return [Row("a run with a learning rate far too high", "missed", False)]
    cause = finding.causes[0]
    seen = finding.detection
    where = f"{seen.failure.name} from step {seen.first_step:.0f}" if seen.first_step is not None else seen.failure.name
    say(f"verdict: {run_report.verdict.value}; {where} ({seen.severity.value})")
    for evidence in seen.evidence[:3]:
        say(f"  {evidence.signal}: {evidence.claim}")
    say(f"cause: {cause.cause} ({100 * cause.confidence:.0f}% sure) — {cause.remediation}")
    say(f"the page: {page}")
    right = "learning" in cause.cause.lower()
    return [Row("a run with a learning rate far too high", f"{seen.failure.name}: {cause.cause}", right)]


def _train_too_hot(folder: Path, log: Path) -> None:
    """Train the demo's model on one process; at step 120 the learning rate jumps a thousandfold."""
    import torch
    from torch import nn

    from holdfast.cli.demo.corpus import build_mixture
    from holdfast.cli.demo.trainer import CharacterModel
    from holdfast.stream import StreamingConfig, StreamingShardLoader

    torch.manual_seed(5)
    model = CharacterModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = StreamingShardLoader(build_mixture(folder), StreamingConfig(batch_size=8))
    with open(log, "w", encoding="utf-8") as file:
        for batch in loader:
            if loader.step == 120:
                for group in optimizer.param_groups:
                    group["lr"] = 3.0
            scores = model(batch["tokens"])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch["targets"].flatten())
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
            optimizer.step()
            record = {"step": loader.step, "loss": loss.item(), "grad_norm": norm.item()}
            file.write(json.dumps({**record, "learning_rate": optimizer.param_groups[0]["lr"]}) + "\n")
            if loader.step == 200:
                break
    loader.close()
