"""Alerts: findings sent to where a person sees them. Sending never delays the training, and never makes it fail.

An alert is any callable that takes a finding: your own function, ``WebhookAlert``, or ``OpenTelemetryAlert``.
"""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigError, MissingDependencyError

__all__ = ["Alert", "Alerts", "OpenTelemetryAlert", "WebhookAlert"]

Alert = Callable[[Mapping[str, Any]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookAlert:
    """An alert that posts a finding as JSON; Slack and similar services show its ``text`` field as a message.

    Args:
        url: where to post it.
        seconds: how long to wait for an answer.
        attempts: the number of attempts.
    """

    url: str
    seconds: float = 10.0
    attempts: int = 3

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError("a webhook must be an http or https URL", url=self.url)

    def __call__(self, finding: Mapping[str, Any]) -> None:
        """Send it; raise the last error if every attempt fails."""
        text = f"{finding['run']}: {finding['title']} from step {finding['onset']} ({finding['severity']})"
        if finding.get("evidence"):
            text += f" — {finding['evidence'][0]}"
        body = json.dumps({"text": text, **finding}, default=str).encode()
        request = urllib.request.Request(self.url, data=body, headers={"Content-Type": "application/json"})
        for _ in range(self.attempts - 1):
            with contextlib.suppress(OSError):  # urllib's own errors are OSErrors
                return self._post(request)
        return self._post(request)

    def _post(self, request: urllib.request.Request) -> None:
        try:
            with urllib.request.urlopen(request, timeout=self.seconds):
                pass
        except urllib.error.HTTPError as error:
            error.close()  # the error is also an open response
            raise


class OpenTelemetryAlert:
    """An alert that emits a finding as an event of an OpenTelemetry span, through the program's tracer provider.

    Args:
        name: the tracer's name.
        provider: a tracer provider to use instead of the program's.
    """

    def __init__(self, name: str = "holdfast.run", *, provider: Any = None) -> None:
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise MissingDependencyError(
                "OpenTelemetry is not installed", hint="pip install 'holdfast[otel]'"
            ) from error
        self._tracer: Any = trace.get_tracer(name, tracer_provider=provider)

    def __call__(self, finding: Mapping[str, Any]) -> None:
        """Emit it."""
        plain = {
            f"holdfast.{name}": value for name, value in finding.items() if isinstance(value, (str, int, float, bool))
        }
        with self._tracer.start_as_current_span("holdfast.finding", attributes=plain):
            pass


class Alerts:
    """A sender of findings in the background.

    Args:
        targets: where to send them.
    """

    def __init__(self, targets: Sequence[Alert]) -> None:
        for target in targets:
            if not callable(target):
                raise ConfigError("an alert must be callable", found=type(target).__name__)
        self._targets = tuple(targets)
        self._threads: list[threading.Thread] = []

    def send(self, finding: Mapping[str, Any], note: Callable[[str, str | None], None]) -> None:
        """Send a finding to every target; ``note`` receives the target and the error, if there was one."""
        for target in self._targets:
            thread = threading.Thread(
                target=self._send, args=(target, finding, note), name="holdfast-alert", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Wait for alerts that are being sent."""
        for thread in self._threads:
            thread.join(seconds)
        self._threads.clear()

    @staticmethod
    def _send(target: Alert, finding: Mapping[str, Any], note: Callable[[str, str | None], None]) -> None:
        name = type(target).__name__ if not hasattr(target, "__name__") else str(target.__name__)
        try:
            target(finding)
        except Exception as error:  # a user's callback may raise anything; the training must not end because of it
            note(name, f"{type(error).__name__}: {error}")
        else:
            note(name, None)
