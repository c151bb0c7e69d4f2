"""Bodies of answers: exactly the bytes that were sent, however they are cut, and an error where they stop coming."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.sources.fetch.body import MAX_BUFFERS, WAKE_BYTES, read_body


@contextmanager
def answered(*parts: bytes, ends: bool = True, timeout: float = 20.0) -> Iterator[tuple[HTTPConnection, HTTPResponse]]:
    """A connection whose peer answers one request with these parts, then hangs up or says nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65_536)
                for part in parts:
                    peer.sendall(part)
                if not ends:
                    done.wait()

        thread = threading.Thread(target=answer)
        thread.start()
        connection = HTTPConnection("127.0.0.1", server.getsockname()[1], timeout=timeout)
        try:
            connection.request("GET", "/")
            yield connection, connection.getresponse()
        finally:
            connection.close()
            done.set()
            thread.join()


def head(length: int) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode()


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=6), st.integers(0, 12_000), st.booleans())
def test_pieces_of_any_size_are_filled_in_their_order(sizes: list[int], cut: int, with_head: bool) -> None:
    body = bytes(number % 251 for number in range(sum(sizes)))
    parts = (head(len(body)) + body[:cut], body[cut:]) if with_head else (head(len(body)), body[:cut], body[cut:])
    with answered(*parts) as (connection, response):
        pieces = [memoryview(bytearray(size)) for size in sizes]
        assert read_body(connection, response, pieces) == len(body)
        assert b"".join(pieces) == body
        assert response.isclosed()  # so that the connection takes another request


def test_more_pieces_than_one_call_takes_are_filled() -> None:
    body = bytes(number % 251 for number in range(3 * (MAX_BUFFERS + 5) + 9_000))
    with answered(head(len(body)), body) as (connection, response):
        pieces = [memoryview(bytearray(3)) for _ in range(MAX_BUFFERS + 5)] + [memoryview(bytearray(9_000))]
        assert read_body(connection, response, pieces) == len(body)
        assert b"".join(pieces) == body


@pytest.mark.parametrize("size", [WAKE_BYTES - 1, WAKE_BYTES, WAKE_BYTES + 1, 3 * WAKE_BYTES + 5])
def test_the_last_bytes_of_a_long_body_are_not_waited_for_with_what_never_comes(size: int) -> None:
    body = bytes(number % 251 for number in range(size))
    with answered(head(size), body[:-1], body[-1:], ends=False) as (connection, response):
        pieces = [memoryview(bytearray(size - 7)), memoryview(bytearray(7))]
        assert read_body(connection, response, pieces) == size
        assert b"".join(pieces) == body
        # A short answer wakes the thread that waits for it.
        assert connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1


@pytest.mark.parametrize("sent", [1, WAKE_BYTES - 1, 2 * WAKE_BYTES + 3, 3 * WAKE_BYTES - 1])
def test_a_long_body_that_ends_early_or_stops_is_noticed(sent: int) -> None:
    size = 3 * WAKE_BYTES
    with answered(head(size), bytes(sent)) as (connection, response):
        assert read_body(connection, response, [memoryview(bytearray(size))]) == sent
    with (
        answered(head(size), bytes(sent), ends=False, timeout=0.05) as (connection, response),
        pytest.raises(TimeoutError),
    ):
        read_body(connection, response, [memoryview(bytearray(size))])


def test_a_body_of_chunks_is_read() -> None:
    with answered(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n") as (
        connection,
        response,
    ):
        pieces = [memoryview(bytearray(2)), memoryview(bytearray(3))]
        assert read_body(connection, response, pieces) == 5
        assert b"".join(pieces) == b"abcde"


@pytest.mark.parametrize("sent", [0, 3, 9_000])
def test_a_body_that_ends_early_is_as_long_as_what_came(sent: int) -> None:
    with answered(head(10_000), bytes(sent)) as (connection, response):
        assert read_body(connection, response, [memoryview(bytearray(5_000)) for _ in range(2)]) == sent
        assert not response.isclosed()


@pytest.mark.parametrize("sent", [0, 9_000])
def test_a_body_that_stops_coming_times_out(sent: int) -> None:
    with (
        answered(head(10_000), bytes(sent), ends=False, timeout=0.05) as (connection, response),
        pytest.raises(TimeoutError),
    ):
        read_body(connection, response, [memoryview(bytearray(10_000))])


def test_the_connection_keeps_its_timeout() -> None:
    with answered(head(9_000), bytes(9_000), timeout=7.5) as (connection, response):
        read_body(connection, response, [memoryview(bytearray(9_000))])
        assert connection.sock.gettimeout() == 7.5
