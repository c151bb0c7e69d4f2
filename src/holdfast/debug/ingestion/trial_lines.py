"""Lines with the result of one trial of a hyperparameter search: ``Trial 3/30: lr=0.01 val_loss=0.42``.

Every such line is a different run, so together they are not a series.
"""

from __future__ import annotations

import re

__all__ = ["TrialLines", "of_trial"]

_TRIAL = re.compile(
    r"(?:^|(?<=[\s\x1f|,;\]-]))(?P<word>trial|configuration|config|combination|candidate|run|experiment)"
    r"[ \x1f]?(?:#|no\.? ?)?(?P<number>\d{1,9})(?:[ \x1f]?(?:/|of|out of)[ \x1f]?(?P<total>\d{1,9}))?"
    r"(?=[\s\x1f:|,;\])-]|$)",
    re.IGNORECASE,
)
# "Trial Result - LR=0.0001 --> Final Loss: 0.64", "Best trial: lr=0.01 loss=0.5": without the trial's number.
_OUTCOME = re.compile(
    r"\b(?:best[ ](?:trial|configuration|config|combination|candidate)"
    r"|(?:trial|configuration|config|combination|candidate)[ ](?:results?|finished|completed?|done|ended))\b",
    re.IGNORECASE,
)
# A run or an experiment may also be what is being trained.
_VAGUE = frozenset(("run", "experiment"))


class TrialLines:
    """Reads the lines of a text in order, and recognises those that begin with the number of another trial."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._unnumbered = 0

    def feed(self, text: str, *, with_rate: bool) -> tuple[float, str] | None:
        """Return the trial's number and the line without it, or None if the line is of no trial or of the same one.

        A numbered run counts if its total is given and the line includes its learning rate.
        """
        match = _TRIAL.search(text)
        if match is None and (outcome := _OUTCOME.search(text)):
            self._unnumbered += 1
            return float(self._unnumbered), text[: outcome.start()] + text[outcome.end() :]
        if match is None or (match["word"].lower() in _VAGUE and not (match["total"] and with_rate)):
            return None
        number = float(match["number"])
        again, self._last = number == self._last, number
        return None if again else (number, text[: match.start()] + text[match.end() :])


def of_trial(name: str) -> str:
    """Return the name of a value of a trial, which ``meaning_of`` recognises."""
    return f"trial's {name}"
