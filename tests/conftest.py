"""Shared fixtures: where the public logs lie, how many examples hypothesis tries, and how many threads torch has."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Property tests decide on counts, never on time; a noisy machine must not fail them. Everyday runs try the same ones
# every time, so that a red run is about the change at hand; soak runs try many new ones.
settings.register_profile(
    "default", deadline=None, max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fast", settings.get_profile("default"), max_examples=8)
settings.register_profile("soak", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])

# Before torch is imported, and for every process a test starts: what tests compute is so small that threads only wait
# for each other, five times as long where other tests run beside them.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Choose how hard hypothesis tries, and let Ctrl-C reach programs.

    ``make soak`` asks for its examples by the marker, ``make test-fast`` by the profile's name. A suite started in the
    background inherits an ignored SIGINT, and so would every program that a test interrupts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    usual = "soak" if config.getoption("markexpr") == "soak" else "default"
    settings.load_profile(config.getoption("--hypothesis-profile", None) or usual)


ROOT = Path(__file__).resolve().parent.parent
# Their files take longest: begun first, they do not leave one worker of `make test` busy when the other is done.
FIRST = ("integrations", "distributed", "faults", "test_examples.py", "test_docs.py", "stream")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the files that take longest to the front; each file's tests stay together and in their order."""
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: min((places[part] for part in item.path.parts if part in places), default=len(FIRST)))


@pytest.fixture(scope="session")
def public_logs() -> Path:
    """The folder of real public training logs beside the project, or a skip that says it is absent."""
    folder = ROOT.parent / "shared" / "logs"
    if not folder.is_dir():
        pytest.skip("the folder of public training logs is not beside the project")
    return folder
