"""Real servers on loopback that can be killed, brought back with their data, or brought back without it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.faults.coordinate_runs import hear, start_talking, wait_for
from tests.faults.coordinate_worker import host_store

KINDS = ("tcp", "redis", "etcd")
PATIENCE = 60.0
_SETTLE = 0.02


def why_not(kind: str) -> str | None:
    """Return why a kind of server cannot be started here; None if it can."""
    program = {"redis": "redis-server", "etcd": "etcd"}.get(kind)
    if program is not None and shutil.which(program) is None:
        return f"{program} is not installed; `make services` installs it"
    return None


def free_port() -> int:
    """Return a port below those that outgoing connections get: a killed server finds it free when it starts again."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Server:
    """One server of a kind, at an address that it keeps over restarts (a TCPStore gets a new one each time)."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.port = free_port()
        self.process: Any = None
        self.start()

    @property
    def address(self) -> str:
        if self.kind == "tcp":
            return f"127.0.0.1:{self.port}"
        return f"{self.kind}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server on what data there is, and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.kind == "tcp":  # held by a process of its own, forked from one that has torch loaded
            self.process, self._channel = start_talking(host_store)
            self.port = hear(self._channel)
            return
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command(), stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + PATIENCE
        while not self._answers():
            assert time.monotonic() < end, f"{self.kind} does not start: {log.name}"
            assert self.process.poll() is None, Path(log.name).read_text()[-2000:]
            time.sleep(_SETTLE)

    def _command(self) -> list[str]:
        if self.kind == "redis":
            return [
                *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)),
                *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
            ]
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{free_port()}"
        return [
            *("etcd", "--data-dir", str(self.folder / "data"), "--log-level", "error", "--force-new-cluster"),
            *("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
            *("--heartbeat-interval", "20", "--election-timeout", "200"),
        ]

    def _answers(self) -> bool:
        try:
            raw = self.raw()
            raw.get("is anybody there")
        except Exception:
            return False
        return True

    def raw(self) -> RawKeys:
        """Return the keys as the engine itself shows them, by none of the package's code."""
        return RawKeys(self.kind, self.port)

    def kill(self) -> None:
        """End the process as a lost host does."""
        if self.process is not None and self.kind == "tcp":
            self.process.kill()
            wait_for([self.process])
        elif self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
        self.process = None

    def forget(self) -> None:
        """Lose the data, too."""
        shutil.rmtree(self.folder, ignore_errors=True)


class RawKeys:
    """Reads keys by the engine's own client."""

    def __init__(self, kind: str, port: int) -> None:
        self._kind = kind
        self._client: Any
        if kind == "redis":
            import redis

            self._client = redis.Redis(port=port, socket_timeout=10)
        elif kind == "etcd":
            from etcd3gw.client import Etcd3Client

            self._client = Etcd3Client(port=port, timeout=10, api_path="/v3/")
        else:
            from datetime import timedelta

            import torch.distributed as dist

            socket.create_connection(("127.0.0.1", port), timeout=10).close()
            self._client = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))  # type: ignore[attr-defined]

    def get(self, key: str) -> bytes | None:
        if self._kind == "redis":
            found: bytes | None = self._client.get(key)
            return found
        if self._kind == "etcd":
            return next(iter(self._client.get(key)), None)
        return self._client.get(key) if self._client.check([key]) else None
