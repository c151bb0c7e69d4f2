"""A store that goes away is noticed within the TTL: by arithmetic and by counting, on a clock of the test's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordinate import StreamCoordinator
from holdfast.coordinate import store as store_module
from holdfast.coordinate.store import StoreClient
from holdfast.errors import CoordinatorLost


def hash_store() -> Any:
    return dist.HashStore()  # type: ignore[attr-defined]


class Clock:
    """A clock that only waiting moves, and that notes every wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self.paused: list[float] = []  # seconds by which a wait lasts longer than asked for

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout: float) -> bool:
        self.waits.append(timeout)
        self.now += timeout + (self.paused.pop() if self.paused else 0.0)
        return False


class Unanswered:
    """An answer that never comes; waiting for it moves the clock."""

    def __init__(self, clock: Clock) -> None:
        self.ready = self
        self.value = self.error = None
        self._clock = clock

    def acquire(self, timeout: float) -> bool:
        return self._clock.wait(timeout)

    def release(self) -> None:
        pass


class Silent:
    """A store that does not answer, and counts how often it is asked."""

    durable = False
    max_value_bytes = 1 << 20

    def __init__(self) -> None:
        self.asked = 0
        self.end = threading.Event()

    def __getattr__(self, _: str) -> Callable[..., None]:
        return self._never

    def _never(self, *_: object) -> None:
        self.asked += 1
        self.end.wait()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(store_module, "monotonic", clock)
    monkeypatch.setattr(store_module, "_Answer", lambda: Unanswered(clock))
    return clock


def attempts(client: StoreClient) -> list[Callable[[], object]]:
    return [
        lambda: client.get("key"),
        lambda: client.get_many(["one", "two"]),
        lambda: client.set("key", b"value"),
        lambda: client.compare_set("key", b"", b"value"),
        lambda: client.add("key", 1),
        lambda: client.delete("key"),
        lambda: client.clone(),
    ]


@given(st.floats(0.1, 100), st.floats(0.01, 0.5))
def test_a_heartbeat_and_an_unanswered_operation_together_last_one_ttl(ttl: float, fraction: float) -> None:
    # At least once a heartbeat the store is asked; whoever asks a store that is gone waits for the rest of the TTL.
    heartbeat = fraction * ttl
    coordinator = StreamCoordinator(hash_store(), 1, heartbeat=heartbeat, ttl=ttl)
    assert coordinator._client._timeout + heartbeat == pytest.approx(ttl)
    coordinator.close()


@pytest.mark.parametrize("number", range(7))
def test_every_operation_waits_once_for_the_deadline_and_then_the_store_is_lost(number: int, clock: Clock) -> None:
    client = StoreClient(hash_store(), prefix="p", timeout=7.5)
    with pytest.raises(CoordinatorLost, match="did not answer"):
        attempts(client)[number]()
    assert (clock.waits, clock.now, client.operations) == ([7.5], 7.5, 1)
    client.close()


def test_a_lost_store_is_not_asked_again(clock: Clock) -> None:
    client = StoreClient(hash_store(), prefix="p", timeout=7.5)
    for attempt in attempts(client):
        with pytest.raises(CoordinatorLost):
            attempt()
    assert (clock.waits, client.operations) == ([7.5], 1)
    client.close()


def test_a_wait_that_lasted_far_longer_than_asked_for_was_this_process_asleep_and_is_made_again(clock: Clock) -> None:
    clock.paused = [60.0]
    client = StoreClient(hash_store(), prefix="p", timeout=7.5)
    with pytest.raises(CoordinatorLost):
        client.get("key")
    assert clock.waits == [7.5, 7.5]
    client.close()


def test_the_first_unanswered_heartbeat_is_the_last_one_and_every_call_then_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = StreamCoordinator(hash_store(), 1, heartbeat=0.02, ttl=1.0)
    silent, clone = Silent(), StoreClient.clone

    def silent_clone(client: StoreClient) -> StoreClient:
        made = clone(client)
        made._store = silent  # type: ignore[assignment]
        return made

    monkeypatch.setattr(StoreClient, "clone", silent_clone)  # before the thread that beats has begun
    coordinator.register_worker(0)
    with pytest.raises(CoordinatorLost):
        coordinator.wait(3600)  # as a worker without work does: it is woken
    assert coordinator._thread is not None
    coordinator._thread.join()  # ends by itself
    assert silent.asked == 1
    for call in (
        coordinator.check,
        lambda: coordinator.get_worker_health(0),
        lambda: coordinator.get_checkpoint(0),
    ):
        with pytest.raises(CoordinatorLost):
            call()
    silent.end.set()
    coordinator.close()
