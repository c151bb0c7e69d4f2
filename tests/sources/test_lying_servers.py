"""Servers that say what is not so, never finish, or never stop: a named error in bounded time and memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import RemoteReadError
from holdfast.sources import RemoteOptions
from holdfast.sources.remote import RemoteFile

# What is sent before a client that does not stop counts as flooded.
ENOUGH = 4 * 2**20


@contextmanager
def answering(answer: Callable[[socket.socket, str], None]) -> Iterator[str]:
    """Serve raw answers on loopback; ``answer`` gets the connection and the request's method, and may raise OSError."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while request := connection.recv(65_536):
                    answer(connection, request.split()[0].decode())
            except OSError:
                return

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/data"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.fixture
def options(tmp_path: Path) -> RemoteOptions:
    return RemoteOptions(cache_dir=tmp_path, attempts=2, first_pause=0.001, timeout=0.3, hedge=False)


def trickle(connection: socket.socket, start: bytes = b"") -> None:
    """Send a byte now and then, so that no single wait is long, until the other side hangs up."""
    connection.sendall(start)
    connection.settimeout(0.02)
    while True:
        connection.sendall(b"x")
        try:
            if not connection.recv(1):
                return
        except TimeoutError:
            continue


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nX-Endless: "])
def test_headers_that_trickle_in_are_given_up(options: RemoteOptions, start: bytes) -> None:
    with (
        answering(lambda connection, _: trickle(connection, start)) as url,
        pytest.raises(RemoteReadError, match=r"not complete after 0\.3 seconds"),
    ):
        RemoteFile(url, options).stamp()


HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nETag: "a"\r\n\r\n'
PARTIAL = b'HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/1000\r\nETag: "a"\r\n\r\n'


@pytest.mark.parametrize("apart", [False, True])
def test_a_body_that_trickles_in_is_given_up(options: RemoteOptions, apart: bool) -> None:
    def answer(connection: socket.socket, method: str) -> None:
        if method == "HEAD":
            connection.sendall(HEAD)
        else:
            trickle(connection, PARTIAL.replace(b": 10\r", b": 1000\r").replace(b"0-9", b"0-999"))

    with answering(answer) as url:
        file = RemoteFile(url, options)
        read = file.read_apart if apart else file.read
        with pytest.raises(RemoteReadError):
            read(0, 1000)


@pytest.mark.parametrize("size", [b"-5", b"abc", b"9" * 30, b"9" * 5000, b"", b"1e3", b"5, 5"])
def test_a_size_that_is_no_size_is_refused(options: RemoteOptions, size: bytes) -> None:
    def answer(connection: socket.socket, method: str) -> None:
        if method == "HEAD":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: " + size + b"\r\n\r\n")
        else:
            connection.sendall(PARTIAL.replace(b"/1000", b"/" + size).replace(b": 10\r", b": 1\r") + b"x")
        connection.shutdown(socket.SHUT_RDWR)

    with answering(answer) as url, pytest.raises(RemoteReadError):
        RemoteFile(url, options).stamp()


def test_a_body_without_end_is_not_read(options: RemoteOptions) -> None:
    sent = 0

    def answer(connection: socket.socket, method: str) -> None:
        nonlocal sent
        if method == "HEAD":
            connection.sendall(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
            return
        head = b"HTTP/1.1 206 P\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-0/1000\r\n\r\n"
        connection.sendall(head)
        while sent < 64 * ENOUGH:
            connection.sendall(b"10000\r\n" + bytes(65_536) + b"\r\n")
            sent += 65_536

    with answering(answer) as url:
        assert RemoteFile(url, options).size == 1000
    assert sent < 2 * ENOUGH  # what the system's buffers hold


def test_interim_answers_without_end_are_given_up(options: RemoteOptions) -> None:
    def answer(connection: socket.socket, method: str) -> None:
        while True:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    with answering(answer) as url, pytest.raises(RemoteReadError):
        RemoteFile(url, options).stamp()


def test_headers_without_end_are_refused(options: RemoteOptions) -> None:
    def answer(connection: socket.socket, method: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"X-More: yes\r\n")

    with answering(answer) as url, pytest.raises(RemoteReadError):
        RemoteFile(url, options).stamp()
