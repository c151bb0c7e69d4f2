"""DeepSpeed: the engine's lines (steps, timers, skipped steps) and those of DeepSpeed-Chat.

The engine prints no loss; the scripts around it do, in lines that this reader also reads.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.numbers import NUMBER, to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["DeepSpeedFormat"]

_STEP = re.compile(r"step=(\d+),\s*skipped=(\d+),\s*lr=\[([^\]]*)\]")
_TIMER = re.compile(r"epoch=(\d+)/micro_step=(\d+)/global_step=(\d+),\s*(.*)$")
_PIPELINE = re.compile(rf"\bsteps:\s*(\d+)\s+loss:\s*({NUMBER})(?:\s+iter time \(s\):\s*({NUMBER}))?(.*)$")
_CHAT = re.compile(r"^\s*epoch:?\s*(\d+)\s*[|,]\s*step:?\s*(\d+)\s*[|,](.*)$", re.IGNORECASE)
_REWARD = re.compile(rf"^\s*average reward score:\s*({NUMBER})", re.IGNORECASE)
_PERPLEXITY = re.compile(rf"^\s*ppl:\s*({NUMBER})(?:,\s*loss:\s*({NUMBER}))?")
_EVALUATING = re.compile(r"Evaluating (\w+),? *(?:at )?Epoch (\d+)/(\d+)", re.IGNORECASE)
_REWARD_EVALUATION = re.compile(
    rf"chosen_last_scores \(higher is better\)\s*:\s*({NUMBER}).*?acc \(higher is better\)\s*:\s*({NUMBER})"
)
_EPOCH_LOSS = re.compile(rf"^\s*Epoch (\d+)/(\d+) with loss\s*:?\s*({NUMBER})")
_PAIR = re.compile(rf"([A-Za-z_][\w ]*?)\s*[:=]\s*({NUMBER})")


class _Reader(LineReader):
    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        self._chat_step: float | None = None
        self.kinds["average reward score"] = "reward"

    def feed(self, line: str) -> bool:
        return self._engine(line) or self._chat(line)

    def _engine(self, line: str) -> bool:
        if "step=" in line:
            match = _STEP.search(line)
            if match:
                self.step = float(match.group(1))
                fields: dict[str, float | None] = {"skipped": float(match.group(2))}
                for group, text in enumerate(match.group(3).split(",")[:8]):
                    rate = to_number(text)
                    if rate is not None:
                        fields["lr" if group == 0 else f"lr_{group}"] = rate
                self.rows.add(self.step, fields)
                return True
            match = _TIMER.search(line)
            if match:
                self.step = float(match.group(3))
                self.rows.add(self.step, _pairs(match.group(4)))
                return True
        match = _PIPELINE.search(line) if "steps:" in line else None
        if match:
            self.step = float(match.group(1))
            fields = {"loss": to_number(match.group(2)), **_pairs(match.group(4))}
            if match.group(3):
                fields["iter time (s)"] = to_number(match.group(3))
            self.rows.add(self.step, fields)
            return True
        return False

    def _chat(self, line: str) -> bool:
        match = _CHAT.match(line)
        if match:
            self._chat_step = self.step = float(match.group(2))
            fields = {
                name: value for name, value in _pairs(match.group(3)).items() if name.lower() not in ("ppo_ep", "rank")
            }
            self.rows.add(self.step, fields, epoch=float(match.group(1)))
            return bool(fields)
        match = _REWARD.match(line)
        if match:
            self.rows.add(self._chat_step, {"average reward score": to_number(match.group(1))})
            return True
        match = _PERPLEXITY.match(line)
        if match:
            fields = {"eval_ppl": to_number(match.group(1))}
            if match.group(2):
                fields["eval_loss"] = to_number(match.group(2))
            self.rows.add(self.step if self.step is not None else 0.0, fields)
            return True
        match = _EPOCH_LOSS.match(line)
        if match:
            self.rows.add(self.step, {"epoch_loss": to_number(match.group(3))})
            return True
        match = _REWARD_EVALUATION.search(line) if "higher is better" in line else None
        if match:
            fields = {"eval_chosen_scores": to_number(match.group(1)), "eval_accuracy": to_number(match.group(2))}
            self.rows.add(self.step if self.step is not None else 0.0, fields)
            return True
        return bool(_EVALUATING.search(line))


def _pairs(text: str) -> dict[str, float | None]:
    return {name.strip(): to_number(value) for name, value in _PAIR.findall(text[:4096])}


class DeepSpeedFormat(TextFormat):
    """Standard output of DeepSpeed's engine and of DeepSpeed-Chat."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "deepspeed"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)

    def score(self, hits: int, lines: int) -> float:
        """Treat lines such as ``ppl: 12`` alone as weak evidence; many are needed."""
        return 0.0 if hits < 2 else min(0.93, 0.7 + 0.03 * hits)
