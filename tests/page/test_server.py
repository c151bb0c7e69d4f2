"""The live server: what it sends, to whom, and how much."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.page.pages import full_page

from holdfast.errors import ConfigError
from holdfast.page.model import Page
from holdfast.page.server import MAX_CONNECTIONS, PageServer


class Stub:
    """A run whose page is given."""

    def __init__(self, name: str, page: Page) -> None:
        self.name = name
        self.current = page
        self.looks = 0

    def version(self) -> str:
        return str(id(self.current))

    def page(self) -> Page:
        self.looks += 1
        return self.current


@contextmanager
def serving(*feeds: Stub, **options: Any) -> Iterator[PageServer]:
    with PageServer(list(feeds), **options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def address(server: PageServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_one_run_is_shown_at_once_and_several_are_listed() -> None:
    with serving(Stub("exp7", full_page())) as server:
        assert b'"live":"/data?run=exp7"' in get(address(server))[1]
    with serving(Stub("exp7", full_page()), Stub("exp8", full_page())) as server:
        assert b'"runs":[' in get(address(server))[1]
        assert b"compare=exp8" in get(address(server) + "/?run=exp7&compare=exp8")[1]


def test_nothing_is_sent_while_nothing_is_new() -> None:
    feed = Stub("exp7", full_page())
    with serving(feed) as server:
        status, body = get(address(server) + "/data?run=exp7")
        version = json.loads(body)["version"]
        looks = feed.looks
        assert get(f"{address(server)}/data?run=exp7&version={version}") == (204, b"")
        assert feed.looks == looks
        feed.current = full_page(steps=500)
        assert get(f"{address(server)}/data?run=exp7&version={version}")[0] == status == 200


def test_a_million_steps_of_twenty_series_are_sent_in_300_kilobytes() -> None:
    with serving(Stub("exp7", full_page(steps=1_000_000, series=19))) as server:
        sent = sum(
            len(get(address(server) + path, **{"Accept-Encoding": "gzip"})[1])
            for path in ("/", "/data?run=exp7&columns=500")
        )
    assert sent <= 300_000


def test_a_zoomed_stretch_is_sent_in_full() -> None:
    with serving(Stub("exp7", full_page(steps=100_000))) as server:
        body = get(address(server) + "/data?run=exp7&columns=300&first=1000&last=1100", **{"Accept-Encoding": "gzip"})[
            1
        ]
    line = json.loads(gzip.decompress(body))["pages"][0]["charts"][0]["lines"][0]
    assert line["first"] == 1000
    assert len(line["values"]) >= 101 * 4


@pytest.mark.parametrize(
    "path",
    [
        "/data?run=other",
        "/data?run=exp7&compare=other",
        "/?run=other",
        "/?run=exp7&compare=other",
        "/etc/passwd",
        "/data",
        "/../run.json",
    ],
)
def test_what_does_not_exist_is_not_found(path: str) -> None:
    with serving(Stub("exp7", full_page())) as server:
        assert get(address(server) + path)[0] == 404


@pytest.mark.parametrize("query", ["columns=x", "first=abc", "last=1e", "first=nan", "last=inf", "first=-1e308"])
def test_a_malformed_request_is_refused(query: str) -> None:
    with serving(Stub("exp7", full_page())) as server:
        assert get(f"{address(server)}/data?run=exp7&{query}")[0] == 400


def test_another_site_cannot_read_a_run_through_the_browser() -> None:
    with serving(Stub("exp7", full_page())) as server:
        assert get(address(server), Host="evil.example:80")[0] == 403
        assert get(address(server), Host=f"localhost:{server.server_address[1]}")[0] == 200


@pytest.mark.parametrize("asked", ["GET / HTTP/1.1\r\nHost: [", "GET http://[/ HTTP/1.1\r\nHost: localhost"])
def test_an_address_that_is_none_is_refused(asked: str, capfd: pytest.CaptureFixture[str]) -> None:
    feed = Stub("exp7", full_page())
    with serving(feed) as server, socket.create_connection(("127.0.0.1", server.server_address[1])) as caller:
        caller.sendall(f"{asked}\r\n\r\n".encode())
        assert caller.recv(100).startswith(b"HTTP/1.1 400")
    assert "Traceback" not in capfd.readouterr().err


def test_whoever_connects_too_often_is_hung_up_on_and_others_are_answered_afterwards() -> None:
    with serving(Stub("exp7", full_page())) as server:
        place = ("127.0.0.1", server.server_address[1])
        before = threading.active_count()
        idle = [socket.create_connection(place) for _ in range(MAX_CONNECTIONS)]
        with socket.create_connection(place) as last:
            assert last.recv(1) == b"", "closed by the server"
        assert threading.active_count() - before <= MAX_CONNECTIONS
        for caller in idle:
            caller.sendall(b"GET /runs HTTP/1.0\r\nHost: localhost\r\n\r\n")
            while caller.recv(1 << 16):
                pass
            caller.close()
        with socket.create_connection(place) as again:
            again.sendall(b"GET /runs HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert again.recv(100).startswith(b"HTTP/1.1 200")


def test_a_token_is_demanded_where_others_can_connect() -> None:
    with serving(Stub("exp7", full_page()), host="0.0.0.0") as server:
        assert server.token
        assert server.url.startswith(f"http://{socket.gethostname()}:"), "0.0.0.0 is no address to open elsewhere"
        assert get(address(server))[0] == 403
        assert get(f"{address(server)}/?token=wrong")[0] == 403
        assert get(f"{address(server)}/?token={server.token}")[0] == 200
        assert get(address(server), Cookie=f"holdfast_token={server.token}")[0] == 200


def test_an_empty_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="the token is empty"):
        PageServer([Stub("exp7", full_page())], host="0.0.0.0", token="")


def test_a_port_in_use_is_an_error_that_says_so() -> None:
    with serving(Stub("exp7", full_page())) as server, pytest.raises(ConfigError, match="cannot listen on"):
        PageServer([Stub("exp8", full_page())], port=server.server_address[1])


def test_a_browser_that_leaves_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    import struct

    with serving(Stub("exp7", full_page(steps=50_000, series=20))) as server:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", server.server_address[1])) as caller:
                caller.sendall(b"GET /data?run=exp7&columns=4000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, at once
        for begun in (b"", b"GET /da"):  # before a question, and in the middle of one
            with socket.create_connection(("127.0.0.1", server.server_address[1])) as caller:
                caller.sendall(begun)
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert get(address(server))[0] == 200
    assert "Traceback" not in capfd.readouterr().err
