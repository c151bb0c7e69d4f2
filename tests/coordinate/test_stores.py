"""Every store obeys the contract, on its real server; a durable one also after its server was killed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from tests.faults.coordinate_servers import KINDS, Server, why_not

from holdfast.cli.main import run
from holdfast.coordinate import EtcdStore, RedisStore, StreamCoordinator, open_store
from holdfast.coordinate.store import StoreClient
from holdfast.coordinate.stores import TorchStore
from holdfast.errors import ConfigError, CoordinatorLost
from holdfast.testing import check_store


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    reason = why_not(request.param)
    if reason is not None:
        pytest.skip(reason)
    server = Server(request.param, tmp_path / "server")
    yield server
    server.kill()


@pytest.fixture
def durable(server: Server) -> Server:
    if server.kind == "tcp":
        pytest.skip("a TCPStore does not come back")
    return server


def restart(server: Server) -> None:
    server.kill()
    server.start()


def test_a_real_server_obeys_the_contract(server: Server) -> None:
    check_store(open_store(server.address), restart=None if server.kind == "tcp" else lambda: restart(server))


def test_torchs_stores_in_one_process_obey_the_contract(tmp_path: Path) -> None:
    check_store(dist.HashStore())  # type: ignore[attr-defined]
    check_store(dist.FileStore(str(tmp_path / "store"), -1))  # type: ignore[attr-defined]


class Forgetful(TorchStore):
    """A store with one rule broken."""

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        self.set(key, desired)
        return desired


def test_a_store_that_does_not_compare_is_found_out() -> None:
    with pytest.raises(AssertionError, match="compare_set"):
        check_store(Forgetful(dist.HashStore()))  # type: ignore[attr-defined]


def test_a_file_store_does_not_grow_by_reading(tmp_path: Path) -> None:
    file = tmp_path / "store"
    store = TorchStore(dist.FileStore(str(file), -1))  # type: ignore[attr-defined]
    store.add("counter", 1)
    store.set("key", b"value")
    size = file.stat().st_size
    for _ in range(100):
        store.get("counter")
        store.get_many(["key", "absent", "counter"])
        store.compare_set("key", b"other", b"value2")
    assert file.stat().st_size == size


def test_a_client_waits_for_a_durable_store_and_its_answers_are_those_of_one_that_never_left(durable: Server) -> None:
    client = StoreClient(open_store(durable.address), prefix="p", timeout=5, patience=60)
    assert client.compare_set("key", b"", b"one") == b"one"
    assert client.add("counter", 1) == 1
    durable.kill()
    again = threading.Timer(0.3, durable.start)
    again.start()
    assert client.compare_set("key", b"one", b"two") == b"two"
    again.join()
    restart(durable)
    assert client.add("counter", 1) in (1, 2)  # at most once: the connection broke under it
    assert client.get("key") == b"two"
    client.close()


def test_a_store_that_comes_back_without_its_data_is_lost(durable: Server) -> None:
    client = StoreClient(open_store(durable.address), prefix="p", timeout=5, patience=60)
    client.set("key", b"value")
    durable.kill()
    durable.forget()
    durable.start()
    with pytest.raises(CoordinatorLost, match="without its data"):
        client.get("key")
    client.close()


def test_a_durable_store_that_stays_away_is_lost_when_the_patience_is_over(durable: Server) -> None:
    client = StoreClient(open_store(durable.address), prefix="p", timeout=0.1, patience=0.1)
    client.set("key", b"value")
    durable.kill()
    with pytest.raises(CoordinatorLost):
        client.get("key")
    client.close()


def test_a_redis_server_that_would_forget_is_refused(tmp_path: Path) -> None:
    reason = why_not("redis")
    if reason is not None:
        pytest.skip(reason)
    server = Server("redis", tmp_path / "server")
    import redis

    client = redis.Redis(port=server.port)
    try:
        client.config_set("maxmemory", 1 << 30)
        RedisStore(server.address).get("key")  # its writes fail where the memory is full, and are not answered
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(ConfigError, match=r"memory is full.*noeviction"):
            RedisStore(server.address).get("key")
        client.config_set("maxmemory", 0)
        client.config_set("appendfsync", "everysec")
        with pytest.raises(ConfigError, match="appendfsync always"):
            RedisStore(server.address).get("key")
        assert open_store(server.address, durable=False).get("key") is None
        with pytest.raises(SystemExit) as ended:
            run(["watch", server.address, "--json"])  # a look changes nothing
        assert ended.value.code == 0
        assert client.keys() == []
    finally:
        server.kill()


@pytest.mark.parametrize("address", ["nowhere", "etcd://nohost", "file:/no/such/store", "127.0.0.1:1"])
def test_an_address_that_leads_nowhere_is_refused(address: str) -> None:
    with pytest.raises((ConfigError, CoordinatorLost)):
        open_store(address, timeout=1)


def test_a_tcp_store_has_an_address_with_and_without_its_scheme() -> None:
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    for scheme in ("", "tcp://"):
        found = open_store(f"{scheme}127.0.0.1:{served.port}", timeout=10)
        assert isinstance(found, TorchStore)
        assert found.add("counter", 2) == (2 if not scheme else 4)


def test_a_scheme_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="redis://HOST:PORT, etcd://HOST:PORT"):
        open_store("memcached://localhost")


def test_a_counter_goes_up_and_down_by_what_is_added(server: Server) -> None:
    store = open_store(server.address)
    assert [store.add("counter", amount) for amount in (3, 4, 0, -2)] == [3, 7, 7, 5]
    assert store.get("counter") == b"5"
    store.close()


@pytest.mark.parametrize(("error", "told"), [("first\nsecond", "first"), ("  \n", "RuntimeError")])
def test_what_a_store_failed_of_is_told_in_one_line(error: str, told: str) -> None:
    class Fails(TorchStore):
        def get(self, key: str) -> bytes | None:
            raise RuntimeError(error)

    client = StoreClient(Fails(dist.HashStore()), prefix="p", timeout=60)  # type: ignore[attr-defined]
    for _ in range(2):  # and again, without asking
        with pytest.raises(CoordinatorLost, match=f"the store failed: {told}(?!\n)") as lost:
            client.get("key")
        assert "second" not in str(lost.value)
    client.close()


def test_a_server_that_is_no_tcp_store_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.coordinate.stores.address.ANSWER_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(CoordinatorLost, match="redis://"):
            open_store(address, timeout=0.1)


@pytest.mark.parametrize("answer", [b"Content-Length: 99\r\n\r\n{", b"Content-Length: 0\r\n\r\n", b"Content-Length: 9"])
def test_an_answer_of_etcd_that_is_cut_short_is_a_lost_connection(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def cut() -> None:
            connection = listener.accept()[0]
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n" + answer)

        thread = threading.Thread(target=cut)
        thread.start()
        with pytest.raises(ConnectionError):
            EtcdStore(f"etcd://127.0.0.1:{listener.getsockname()[1]}").get("key")
        thread.join()


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError):
        RedisStore("nothing")
    with pytest.raises(ConfigError):
        EtcdStore("nothing")


def test_a_users_own_store_works_as_ours_do() -> None:
    class Own(TorchStore):
        def __init__(self, plain: Any) -> None:
            super().__init__(plain)
            self.asked = 0

        def get(self, key: str) -> bytes | None:
            self.asked += 1
            return super().get(key)

        def clone(self) -> Own:
            return self

    own = Own(dist.HashStore())  # type: ignore[attr-defined]
    check_store(own)
    with StreamCoordinator(own, 1) as coordinator:
        coordinator.register_worker(0)
        assert [worker.rank for worker in coordinator.workers()] == [0]
    assert own.asked > 0
