"""The page live: the standard library's server, on this machine, for running jobs.

The browser polls twice per second and gets only what its pixels can show. Nothing is stored, and no other host is
contacted. Bound to an address other than loopback, the server requires a token; on loopback it answers only requests
addressed to this machine, so that no other site can read a run through the user's browser.
"""

from __future__ import annotations

import gzip
import hmac
import json
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socket import gethostname
from typing import Any, Protocol
from urllib.parse import parse_qs, quote, urlsplit

from holdfast.errors import ConfigError, HoldfastError
from holdfast.page.model import Page
from holdfast.page.render import MAX_COLUMNS, MIN_COLUMNS, render_shell

__all__ = ["Feed", "PageServer"]

COOKIE = "holdfast_token"
DEFAULT_COLUMNS = 1000
MAX_STEP = 2.0**53
"""Larger steps cannot be distinguished."""
MAX_CONNECTIONS = 100
"""Maximum number of connections; each has its own thread, and a browser keeps up to six."""
MAX_IDLE_SECONDS = 30.0
"""Maximum idle time of a connection: a page polls twice per second."""


class Feed(Protocol):
    """A run that can be viewed while it is running."""

    @property
    def name(self) -> str:
        """The name of the run in the list."""

    def version(self) -> str:
        """Return something that changes whenever the page would."""

    def page(self) -> Page:
        """Return the current page."""


class PageServer(ThreadingHTTPServer):
    """Serves the pages of some runs until it is shut down.

    Args:
        feeds: the runs.
        host: the address to listen on.
        port: the port; 0 for any free one, which ``url`` contains.
        token: the token that a browser must present; generated if the address is not loopback and none is given.
    """

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(
        self, feeds: Sequence[Feed], *, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        if not feeds:
            raise ConfigError("there is no run to serve", hint="pass a run folder or a log")
        if token is not None and not token.strip():
            raise ConfigError("the token is empty", hint="omit it, and one is generated if needed")
        self.feeds = {feed.name: feed for feed in feeds}
        self._rows: dict[str, tuple[str, dict[str, Any]]] = {}
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._answering = threading.Condition()
        self._answers = 0
        self.local = _is_loopback(host)
        self.token = token if token is not None or self.local else secrets.token_urlsafe(24)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror}", host=host, port=port, hint="choose another --port"
            ) from error

    def read_ahead(self) -> None:
        """Start reading the runs in the background, so that the first page does not wait for all of them."""

        def read() -> None:
            for feed in self.feeds.values():
                with suppress(HoldfastError, OSError):  # reported to the viewer
                    feed.version()

        threading.Thread(target=read, name="holdfast-read-ahead", daemon=True).start()

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the list of runs; a run is read again only if it has changed."""
        return [self._row(feed) for feed in self.feeds.values()]

    def _row(self, feed: Feed) -> dict[str, Any]:
        try:
            version = feed.version()
            kept = self._rows.get(feed.name)
            if kept is None or kept[0] != version:
                kept = self._rows[feed.name] = (version, _row(feed.name, feed.page()))
            return kept[1]
        except (HoldfastError, OSError) as error:
            return {"name": feed.name, "href": _href(feed.name), "verdict": "unreadable", "lead": str(error)}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a separate thread, and close the connection if there are too many."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and free the slot."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count an answer in progress."""
        with self._answering:
            self._answers += 1
        try:
            yield
        finally:
            with self._answering:
                self._answers -= 1
                self._answering.notify_all()

    def server_close(self) -> None:
        """Stop listening, and wait for answers in progress: a process that ends during one aborts."""
        super().server_close()
        with self._answering:
            self._answering.wait_for(lambda: not self._answers, timeout=MAX_IDLE_SECONDS)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that has closed its connection; report any other error as the library does."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The URL to open, with the token."""
        host, port = str(self.server_address[0]), self.server_address[1]
        if ip_address(host).is_unspecified:  # every address of this machine; a remote browser needs its name
            host = gethostname()
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}/" + (f"?token={quote(self.token)}" if self.token else "")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the body waits until the browser has acknowledged the header
    timeout = MAX_IDLE_SECONDS
    server_version = "holdfast"
    sys_version = ""

    def log_message(self, *_: object) -> None:
        """Do nothing: a page that polls would fill the terminal."""

    def do_GET(self) -> None:
        with self.server.answering():
            self._answer()

    def _answer(self) -> None:
        try:
            address, named = urlsplit(self.path), urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:
            return self._send(HTTPStatus.BAD_REQUEST, "text/plain", b"this is not an address")
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        if self.server.local and not _is_loopback(named):
            said = b"this server answers requests for localhost only: use the address serve printed, or serve --host"
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", said)
        if not self._has_token(query):
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", b"a token is needed: use the address serve printed")
        if address.path == "/data":
            return self._send_data(query)
        if address.path == "/runs":
            return self._send(HTTPStatus.OK, "application/json", json.dumps(self.server.rows()).encode())
        if address.path == "/":
            return self._send_page(query)
        return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page")

    def _has_token(self, query: Mapping[str, str]) -> bool:
        if self.server.token is None:
            return True
        cookies = SimpleCookie(self.headers.get("Cookie", ""))
        kept = cookies[COOKIE].value if COOKIE in cookies else ""
        return any(
            hmac.compare_digest(each.encode(), self.server.token.encode()) for each in (query.get("token", ""), kept)
        )

    def _send_page(self, query: Mapping[str, str]) -> None:
        feeds = self.server.feeds
        if any(query[name] not in feeds for name in ("run", "compare") if name in query):
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such run")
        name = query.get("run", next(iter(feeds)) if len(feeds) == 1 else "")
        if name in feeds:
            own = quote(name, safe="")
            data: dict[str, Any] = {"live": f"/data?run={own}", "home": "/"}
            compared = query.get("compare")
            if compared in feeds:
                data["live"] += f"&compare={quote(str(compared), safe='')}"
            if len(feeds) > 1:
                others = [
                    [f"compare with {each}", f"/?run={own}&compare={quote(each, safe='')}", each == compared]
                    for each in feeds
                    if each != name
                ]
                data["others"] = [["compare with …", f"/?run={own}", compared not in feeds], *others]
            return self._send(HTTPStatus.OK, "text/html; charset=utf-8", render_shell(data, title=name).encode())
        listed = {"runs": self.server.rows(), "list": "/runs"}
        return self._send(HTTPStatus.OK, "text/html; charset=utf-8", render_shell(listed, title="Runs").encode())

    def _send_data(self, query: Mapping[str, str]) -> None:
        names = [query[name] for name in ("run", "compare") if name in query]
        feeds = [self.server.feeds[name] for name in names if name in self.server.feeds]
        if not feeds or len(feeds) < len(names):
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such run")
        try:
            version = " ".join(feed.version() for feed in feeds)
            if version == query.get("version"):
                return self._send(HTTPStatus.NO_CONTENT, "text/plain", b"")
            columns = min(MAX_COLUMNS, max(MIN_COLUMNS, int(query.get("columns") or DEFAULT_COLUMNS)))
            small = min(columns, max(MIN_COLUMNS, int(query.get("small") or columns)))
            first, last = _number(query.get("first")), _number(query.get("last"))
            pages = [feed.page().to_json(columns=columns, small=small, first=first, last=last) for feed in feeds]
        except (HoldfastError, OSError) as error:
            # A run that is being written, moved or removed: the next request may work.
            return self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error).encode("utf-8", "replace"))
        except ValueError as error:
            return self._send(HTTPStatus.BAD_REQUEST, "text/plain", str(error).encode("utf-8", "replace"))
        body = json.dumps({"version": version, "pages": pages}, allow_nan=False, separators=(",", ":")).encode()
        return self._send(HTTPStatus.OK, "application/json", body)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Frame-Options", "DENY")
        if self.server.token is not None and status is not HTTPStatus.FORBIDDEN:
            self.send_header("Set-Cookie", f"{COOKIE}={self.server.token}; HttpOnly; SameSite=Strict; Path=/")
        if body and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, compresslevel=5)
            self.send_header("Content-Encoding", "gzip")
        if status is not HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(body)))
        try:
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:  # the browser has left the page
            self.close_connection = True


def _number(text: str | None) -> float | None:
    number = float(text) if text else None
    if number is not None and not abs(number) <= MAX_STEP:
        raise ValueError(f"not a step: {number}")
    return number


def _href(name: str) -> str:
    return f"/?run={quote(name, safe='')}"


def _row(name: str, page: Page) -> dict[str, Any]:
    last = [float(line.steps[-1]) for chart in page.charts for line in chart.lines if len(line.steps)]
    wall = sum(bucket.seconds for bucket in page.goodput)
    useful = sum(bucket.seconds for bucket in page.goodput if bucket.name == "step")
    return {
        "name": name,
        "href": _href(name),
        "verdict": page.verdict,
        "steps": max(last, default=None),
        "goodput": useful / wall if wall else None,
        "lead": page.lead,
    }
