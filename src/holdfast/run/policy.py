"""What a run does about a finding. Detecting is not acting: without a policy, findings are only logged."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from holdfast.errors import ConfigError

__all__ = ["Action", "Policy"]

SEVERITIES = ("info", "warning", "critical")


class Action(IntEnum):
    """What is done about a finding; of several at one step, the highest."""

    LOG = 0
    ALERT = 1
    PAUSE = 2
    STOP = 3
    ROLLBACK = 4


class Policy:
    """Looks up the action for a failure and its severity.

    Args:
        rules: one action for everything of at least *warning* severity (``"alert"``), or a table. Its keys are a
            failure (``"nan"``), a severity (``"critical"``), both (``"spike/critical"``) or ``"*"``; the most
            specific key decides.

    Raises:
        ConfigError: an unknown action, or a key that says nothing.

    Example:
        >>> policy = Policy({"nan": "rollback", "critical": "alert"})
        >>> policy.action("nan", "critical").name, policy.action("spike", "warning").name
        ('ROLLBACK', 'LOG')
    """

    def __init__(self, rules: str | Mapping[str, str] = "log") -> None:
        if isinstance(rules, str):
            rules = {"warning": rules, "critical": rules}
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
            failure, slash, severity = key.partition("/")
            if not failure or (slash and severity not in SEVERITIES):
                raise ConfigError(
                    "unknown kind of finding", key=key, hint='a failure, a severity, "failure/severity" or "*"'
                )
            self._rules[key] = action

    def action(self, failure: str, severity: str) -> Action:
        """Return what to do about a failure of this severity."""
        for key in (f"{failure}/{severity}", failure, severity, "*"):
            if key in self._rules:
                return self._rules[key]
        return Action.LOG

    @property
    def highest(self) -> Action:
        """The most that can happen under this policy."""
        return max(self._rules.values(), default=Action.LOG)
