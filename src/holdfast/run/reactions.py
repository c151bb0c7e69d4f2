"""Reactions to findings: the rank that found one logs it; it is shared, and all ranks act on it together."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.debug.types import Failure
from holdfast.errors import RunStoppedError
from holdfast.run.alerts import Alert, Alerts
from holdfast.run.attempt import Attempt
from holdfast.run.findings import is_same, key_of
from holdfast.run.layout import RunFolder
from holdfast.run.policy import Action, Policy

__all__ = ["Reactions"]

PAUSE_POLL_SECONDS = 0.1


class Reactions:
    """The executor of a policy.

    Args:
        attempt: the attempt that the findings belong to.
        folder: the run's folder.
        policy: what to do.
        alerts: where alerts go.

    Attributes:
        waiting: findings of this rank that need more than logging.
    """

    def __init__(self, attempt: Attempt, folder: RunFolder, policy: Policy, alerts: Sequence[Alert]) -> None:
        self._attempt = attempt
        self._folder = folder
        self._policy = policy
        self._alerts = Alerts(alerts)
        self.waiting: list[dict[str, Any]] = []

    @property
    def wanted(self) -> Action:
        """The highest action that this rank's new findings ask for."""
        if not self.waiting:
            return Action.LOG
        return max(self._policy.action(finding["failure"], finding["severity"]) for finding in self.waiting)

    def note(self, findings: Sequence[dict[str, Any]]) -> None:
        """Log this rank's findings; those that need more than logging wait to be shared."""
        for finding in findings:
            action = self._policy.action(finding["failure"], finding["severity"])
            self._attempt.event("finding", **finding, action=action.name.lower())
            if action > Action.LOG:
                self.waiting.append(finding)

    def take(self) -> list[dict[str, Any]]:
        """Return the waiting findings, and clear them."""
        found, self.waiting = self.waiting, []
        return found

    def act(self, shared: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """Act on the findings of all ranks; return the finding to roll back for, if there is one.

        Raises:
            RunStoppedError: a finding stops the run.
        """
        merged = {key_of(finding): finding for finding in sorted(shared, key=lambda finding: -finding["onset"])}
        by_action: dict[Action, list[dict[str, Any]]] = {}
        for finding in merged.values():
            by_action.setdefault(self._policy.action(finding["failure"], finding["severity"]), []).append(finding)
            self.alert(finding)
        if not by_action:
            return None
        action = max(by_action)
        first = min(by_action[action], key=lambda finding: (finding["onset"], finding["failure"]))
        if action is Action.PAUSE:
            self._pause(first)
        elif action is Action.STOP:
            self.stop(first, "a finding stopped the run")
        return first if action is Action.ROLLBACK else None

    def alert(self, finding: dict[str, Any], *, here: bool = False) -> None:
        """Send a finding once: from rank 0, or with ``here`` from this rank; never if an earlier attempt sent it."""
        attempt = self._attempt
        if not (attempt.ranks.is_first or here):
            return
        sent = [event["finding"] for event in attempt.history.events if event["event"] == "alert"]
        if any(is_same(finding, earlier) for earlier in sent):
            return
        # Logged before it is sent: a crash in between loses an alert, but never sends it twice.
        attempt.note("alert", finding=finding)

        def note(target: str, error: str | None) -> None:
            attempt.note("alert_sent", target=target, error=error)

        self._alerts.send({"run": str(self._folder.root), **finding}, note)

    def note_stall(self, stall: Mapping[str, Any]) -> None:
        """Send an alert about a stall, if the policy asks for one; called by the watchdog's thread.

        The loop is blocked, so nothing else can be done here; only one rank reports it.
        """
        if self._policy.action(Failure.HANG.name, "critical") is Action.LOG or stall["speaker"] != stall["rank"]:
            return
        culprits = stall["culprits"]
        finding = {
            "failure": Failure.HANG.name,
            "title": Failure.HANG.title,
            "severity": "critical",
            "confidence": 1.0,
            "onset": stall["step"],
            "certain_step": stall["step"],
            "last_step": None,
            "rank": culprits[0] if culprits else stall["rank"],
            "names_rank": len(culprits) == 1,
            "layer": None,
            "signal": stall["collective"],
            "evidence": [f"no progress for {stall['standing']} s at {stall['where']}"],
            "causes": [],
            "advice": Failure.HANG.advice,
            "found_at": stall["step"],
        }
        self.alert(finding, here=True)

    def stop(self, finding: Mapping[str, Any], reason: str) -> None:
        """End the run because of a finding."""
        self._attempt.event("stopped", step=self._attempt.step, finding=dict(finding))
        raise RunStoppedError(
            f"{reason}: {finding['title']} from step {finding['onset']}",
            finding=finding["failure"],
            step=self._attempt.step,
            rank=finding["rank"],
            hint="see `holdfast debug` on the run's folder; starting again continues from the newest checkpoint",
        )

    def _pause(self, finding: dict[str, Any]) -> None:
        """Wait until a person deletes the file ``PAUSED``."""
        attempt, path = self._attempt, self._folder.paused
        attempt.event("paused", step=attempt.step, finding=finding)
        attempt.recorder.sync()
        attempt.stopwatch.lap("step")

        def wait() -> None:
            temporary = path.with_name(f".{path.name}.tmp")
            temporary.write_text(json.dumps(finding, indent=1), encoding="utf-8")
            os.replace(temporary, path)
            while path.exists():
                time.sleep(PAUSE_POLL_SECONDS)

        attempt.ranks.first(wait)
        attempt.stopwatch.lap("paused")
        attempt.event("continued", step=attempt.step)

    def close(self) -> None:
        """Wait briefly for alerts that are being sent."""
        self._alerts.wait(10.0)
