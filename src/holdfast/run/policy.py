"""What a run does about a finding. Without a policy, findings are only logged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from holdfast.arguments import check_type, closest
from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors import known_failures
from holdfast.errors import ConfigError

__all__ = ["Action", "Policy"]

SEVERITIES = ("info", "warning", "critical")


class Action(IntEnum):
    """An action for a finding; if a step has several, the highest is taken."""

    LOG = 0
    ALERT = 1
    PAUSE = 2
    STOP = 3
    ROLLBACK = 4


class Policy:
    """A table of actions by failure and severity.

    Args:
        rules: one action for everything of at least *warning* severity (``"alert"``), or a table. Its keys are a
            failure (``"nan"``), a severity (``"critical"``), both (``"spike/critical"``) or ``"*"``; the most
            specific key decides.
        detectors: your own detectors, whose failures can then be named too.

    Raises:
        ConfigError: an unknown action, or a key that nothing can match.

    Example:
        >>> policy = Policy({"nan": "rollback", "critical": "alert"})
        >>> policy.action("nan", "critical").name, policy.action("spike", "warning").name
        ('ROLLBACK', 'LOG')
    """

    def __init__(self, rules: str | Mapping[str, str] = "log", *, detectors: Iterable[BaseDetector] = ()) -> None:
        if isinstance(rules, str):
            rules = {"warning": rules, "critical": rules}
        check_type("on_finding", rules, Mapping, "an action, or a table of actions by failure and severity")
        names = _names(detectors)
        self._rules: dict[str, Action] = {}
        for key, name in rules.items():
            try:
                action = Action[name.upper()]
            except (KeyError, AttributeError):
                raise ConfigError(
                    "unknown action for a finding",
                    action=name,
                    hint=f"one of {', '.join(a.name.lower() for a in Action)}",
                ) from None
            check_type("a key of on_finding", key, str, "the name of a failure or a severity")
            failure, slash, severity = key.partition("/")
            if slash and severity not in SEVERITIES:
                raise ConfigError("unknown severity of a finding", key=key, hint=closest(severity, [*SEVERITIES]))
            # A rule that never matches would give no protection, and nobody would notice.
            if names is not None and failure not in names and (slash or key not in (*SEVERITIES, "*")):
                known = sorted(names) if slash else [*sorted(names), *SEVERITIES, "*"]
                raise ConfigError("unknown kind of finding", key=key, hint=closest(failure, known))
            self._rules[key] = action

    def action(self, failure: str, severity: str) -> Action:
        """Return what to do about a failure of this severity."""
        for key in (f"{failure}/{severity}", failure, severity, "*"):
            if key in self._rules:
                return self._rules[key]
        return Action.LOG

    @property
    def highest(self) -> Action:
        """The highest action that this policy can take."""
        return max(self._rules.values(), default=Action.LOG)


def _names(detectors: Iterable[BaseDetector]) -> set[str] | None:
    """Return the names of the failures that can be found; None if a detector does not declare its failures."""
    own = [detector.failure for detector in detectors]
    if any(failure is None for failure in own):
        return None
    return {failure.name for failure in (*known_failures(), *own) if failure is not None}
