"""Servers on loopback, each in a process of its own: byte ranges with latency, failures and a cap, and moto's S3."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

__all__ = ["Remote", "serve", "serve_s3"]

# Sent at a time: little where a cap is to be kept to, much where each call would only cost the reader processor time.
_CAPPED_CHUNK, _CHUNK = 256 * 1024, 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What the server does to every request.

    Attributes:
        latency: seconds before it answers.
        errors: the share of GET requests it answers with a 500.
        bandwidth: bytes per second over all connections; 0 for no cap.
    """

    latency: float = 0.0
    errors: float = 0.0
    bandwidth: float = 0.0


class _Cap:
    """Lets bytes through at a rate, for all threads together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, size: int, rate: float) -> None:
        if not rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / rate
            pause = self._free_at - now
        if pause > 0.002:
            time.sleep(pause)


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    """Return where a requested range begins and ends; without a first byte, it is the last ones."""
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last or size) + 1)


def _run(folder: Path, pipe: Connection) -> None:
    state: dict[str, Any] = {"conditions": Conditions(), "requests": 0, "bytes": 0}
    cap, lock, chance = _Cap(), threading.Lock(), random.Random(0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 0

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            conditions: Conditions = state["conditions"]
            if conditions.latency:
                time.sleep(conditions.latency)
            with lock:
                state["requests"] += 1
                failed = body and chance.random() < conditions.errors
            try:
                file = os.open(folder / self.path.lstrip("/"), os.O_RDONLY)
            except OSError:
                self.plain(404)
                return
            try:
                if failed:
                    self.plain(500)
                    return
                size = os.fstat(file).st_size
                asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
                start, stop = _bounds(asked[1], asked[2], size) if asked else (0, size)
                head = [
                    f"HTTP/1.1 {'206 Partial Content' if asked else '200 OK'}",
                    f"Content-Length: {stop - start}",
                    "Accept-Ranges: bytes",
                    f'ETag: "{size}"',
                ]
                if asked:
                    head.append(f"Content-Range: bytes {start}-{stop - 1}/{size}")
                self.connection.sendall("\r\n".join([*head, "", ""]).encode())
                at, chunk = start, _CAPPED_CHUNK if conditions.bandwidth else _CHUNK
                while body and at < stop:
                    cap.wait(min(chunk, stop - at), conditions.bandwidth)
                    at += os.sendfile(self.connection.fileno(), file, at, min(chunk, stop - at))
                with lock:
                    state["bytes"] += at - start
            finally:
                os.close(file)

        def plain(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            return

    class Server(ThreadingHTTPServer):
        request_queue_size = 256
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            return

        def get_request(self) -> tuple[socket.socket, Any]:
            connection, address = super().get_request()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection, address

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pipe.send(server.server_address[1])
    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            return
        if isinstance(asked, Conditions):
            state["conditions"] = asked
            state["requests"] = state["bytes"] = 0
        pipe.send((state["requests"], state["bytes"]))


class Remote:
    """The server as a bench sees it."""

    def __init__(self, port: int, pipe: Connection) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._pipe = pipe

    def set(self, **conditions: float) -> None:
        """Serve under other conditions, and count from zero."""
        self._pipe.send(Conditions(**conditions))
        self._pipe.recv()

    def counts(self) -> tuple[int, int]:
        """Return the requests answered, and the bytes sent, since the conditions were set."""
        self._pipe.send(None)
        requests, sent = self._pipe.recv()
        return requests, sent


def _run_s3(pipe: Connection) -> None:
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    pipe.send(server.get_host_and_port()[1])
    with suppress(EOFError):
        pipe.recv()
    server.stop()


@contextmanager
def serve(folder: Path) -> Iterator[Remote]:
    """Serve a folder on loopback."""
    with _served(_run, folder) as pipe:
        yield Remote(pipe.recv(), pipe)


@contextmanager
def serve_s3() -> Iterator[str]:
    """Serve an S3 without any bucket on loopback, and give its address."""
    with _served(_run_s3) as pipe:
        yield f"http://127.0.0.1:{pipe.recv()}"


@contextmanager
def _served(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.terminate()
        process.join()
