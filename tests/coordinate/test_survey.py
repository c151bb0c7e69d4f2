"""How an outside observer looks: how often, for how long, and with whose time to live."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from holdfast.coordinate.presence import Presence
from holdfast.coordinate.store import StoreClient
from holdfast.coordinate.survey import DEFAULT_TTL, Survey


@pytest.fixture
def client() -> Iterator[StoreClient]:
    client = StoreClient(dist.HashStore(), prefix="p", timeout=60)  # type: ignore[attr-defined]
    yield client
    client.close()


@pytest.mark.parametrize(
    ("heartbeat", "ttl", "seconds"),
    [(2.0, 9.0, 0.2), (60.0, 600.0, 0.5), (0.01, 600.0, 0.01), (0.0, 9.0, 0.3)],
    ids=["a tenth of a heartbeat", "half a second at most", "ten milliseconds at least", "a thirtieth of the ttl"],
)
def test_an_observer_looks_again_after(client: StoreClient, heartbeat: float, ttl: float, seconds: float) -> None:
    worker, waited = Presence(1, ttl=ttl, heartbeat=heartbeat), list[float]()
    worker.register(client, 0)

    def wait(time: float) -> None:
        waited.append(time)
        if len(waited) == 3:
            worker.beat(client, 0)

    snapshot = Survey(client).watch_until_certain(wait)
    assert waited == pytest.approx([seconds] * 3)  # no longer than until all are known to live
    assert (snapshot.certain, snapshot.ttl, snapshot.heartbeat) == (True, ttl, heartbeat)


def test_the_ttl_is_the_observers_own_or_the_jobs_or_the_default(client: StoreClient) -> None:
    assert Survey(client).look().ttl == DEFAULT_TTL
    Presence(1, ttl=9.0, heartbeat=2.0).register(client, 0)
    assert Survey(client).look().ttl == 9.0
    assert Survey(client, ttl=4.0).look().ttl == 4.0
    with pytest.raises(TypeError):
        Survey(client, 4.0)  # type: ignore[call-arg]  # seconds without a name could be anything


def test_an_observer_is_certain_of_a_silent_worker_once_the_ttl_has_passed(client: StoreClient) -> None:
    Presence(1, ttl=9.0, heartbeat=2.0).register(client, 0)
    survey = Survey(client)
    assert not survey.look(100.0).certain
    assert not survey.look(109.0).certain
    late = survey.look(109.1)
    assert late.certain
    assert [worker.status.name for worker in late.workers] == ["FAILED"]
