"""Opening a store by its address, as given on a command line or in a configuration file."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

from holdfast.coordinate.stores.contract import Store
from holdfast.errors import ConfigError, CoordinatorLost

__all__ = ["open_store"]

# After its own timeout torch needs a moment to report it.
ANSWER_SECONDS = 2.0


def open_store(address: str, *, timeout: float = 10.0, durable: bool = True) -> Store:
    """Open the store at an address.

    Args:
        address: ``redis://HOST:PORT``, ``etcd://HOST:PORT``, ``HOST:PORT`` (a TCPStore's server: it lives in one
            process's memory and is gone when that process dies), or ``file:PATH`` (a FileStore, for tests).
        timeout: seconds to wait for a connection.
        durable: False accepts a Redis server that keeps less than every answered write; see ``RedisStore``.
    """
    scheme, separator, _ = address.partition("://")
    if separator and scheme in ("redis", "rediss", "unix"):
        from holdfast.coordinate.stores.redis_store import RedisStore

        return RedisStore(address, timeout=timeout, durable=durable)
    if separator and scheme in ("etcd", "http", "https"):
        from holdfast.coordinate.stores.etcd_store import EtcdStore

        return EtcdStore(address, timeout=timeout)
    return _open_torch_store(address.removeprefix("tcp://"), timeout)


def _open_torch_store(address: str, timeout: float) -> Store:
    import torch.distributed as dist

    from holdfast.coordinate.stores.torch_store import TorchStore

    if address.startswith("file:"):
        path = Path(address.removeprefix("file:"))
        if not path.is_file():
            raise ConfigError("the store file does not exist", path=str(path))
        return TorchStore(dist.FileStore(str(path), -1))  # type: ignore[attr-defined]
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(
            "a store's address is redis://HOST:PORT, etcd://HOST:PORT, HOST:PORT (TCPStore) or file:PATH", store=address
        )
    _refuse_deaf(host, int(port), timeout)

    def connect() -> Store:
        found = dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=timeout))  # type: ignore[attr-defined]
        return TorchStore(found)

    # In a thread: torch retries a server of another kind for many times the timeout.
    opened: Future[Store] = Future()
    threading.Thread(target=_fulfil, args=(opened, connect), name="holdfast-connect", daemon=True).start()
    try:
        return opened.result(timeout + ANSWER_SECONDS)
    except TimeoutError:
        raise CoordinatorLost(
            "the server at this address is not a TCPStore",
            store=address,
            hint="a Redis server's address begins with redis://, an etcd server's with etcd://",
        ) from None
    except RuntimeError as error:
        raise _unreachable(address) from error


def _fulfil(opened: Future[Store], connect: Callable[[], Store]) -> None:
    try:
        opened.set_result(connect())
    except BaseException as error:  # passed on to the caller, which waits
        opened.set_exception(error)


def _refuse_deaf(host: str, port: int, timeout: float) -> None:
    """Try a plain socket first: torch prints pages of stack traces about a refused connection."""
    import socket

    try:
        socket.create_connection((host, port), timeout=timeout).close()
    except OSError as error:
        raise _unreachable(f"{host}:{port}") from error


def _unreachable(address: str) -> CoordinatorLost:
    return CoordinatorLost(
        "the store cannot be reached",
        store=address,
        hint="check the address and that the server runs; torchrun's store is MASTER_ADDR:MASTER_PORT",
    )
