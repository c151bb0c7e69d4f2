"""Byte ranges from web servers, with every answer held against what was asked for.

Written on the standard library's client: fsspec's own reading hides the headers that say which version of the file an
answer is of, and puts every byte through one event loop (bench/remote.py has the figures of both).

Redirects are followed, at most ``MAX_REDIRECTS`` in a row, to http and https only and never from https to http; the
caller's headers (credentials) are sent to the host they were meant for only.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
import weakref
from base64 import b64encode
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

from holdfast.errors import RemoteReadError
from holdfast.sources.fetch.body import read_body
from holdfast.sources.fetch.buffers import Buffers
from holdfast.sources.fetch.options import RemoteOptions
from holdfast.sources.fetch.transport import CONTENT_RANGE, Cancel, Data, WrongAnswer, changed, whole_size
from holdfast.sources.files import UNVERSIONED, Stamp

__all__ = ["HttpStatusError", "HttpTransport", "can_ask"]

MAX_REDIRECTS = 5
MAX_IDLE = 128  # connections kept open per host between requests
_KNOWN_OPTIONS = {"headers", "client_kwargs"}
# At most 18 digits: no file is longer, and Python refuses to convert thousands of them.
_SIZE = re.compile(r"[0-9]{1,18}")
# Statuses of servers, and of signed URLs, that allow one kind of request and not another.
_OTHER_REQUEST = (400, 403, 405, 501)
_BROKEN = (http.client.BadStatusLine, ConnectionError, BrokenPipeError)


class HttpStatusError(OSError):
    """A status that is no answer; ``status`` says whether asking again may help.

    Args:
        status: the number.
        reason: the server's words for it.
        retry_after: the header of that name: seconds, or a date.
    """

    def __init__(self, status: int, reason: str, retry_after: str = "") -> None:
        super().__init__(f"HTTP status {status} {reason}".rstrip())
        self.status = status
        self.retry_after = _seconds_until(retry_after)
        """Seconds that the server asks to wait; None where it does not."""


def can_ask(url: str, options: RemoteOptions) -> bool:
    """Say whether a URL is of a web server, and asks for nothing that only fsspec's client does."""
    parts = urlsplit(url)
    given = options.storage_options
    client = given.get("client_kwargs", {})
    return parts.scheme in ("http", "https") and given.keys() <= _KNOWN_OPTIONS and client.keys() <= {"headers"}


class _Origin(NamedTuple):
    scheme: str
    netloc: str


class HttpTransport:
    """Web servers, over connections that are kept open.

    Args:
        options: headers and timeout.
    """

    def __init__(self, options: RemoteOptions) -> None:
        given = options.storage_options
        self._headers: dict[str, str] = {
            **given.get("client_kwargs", {}).get("headers", {}),
            **given.get("headers", {}),
        }
        self._timeout = options.timeout
        self._buffers = Buffers()
        self._idle: dict[_Origin, list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()
        self._moved: dict[str, str] = {}  # where a URL led last: most redirects hold for many requests
        self._without_tails: set[_Origin] = set()
        self._tls: ssl.SSLContext | None = None
        weakref.finalize(self, _close_all, self._idle)

    def stamp(self, url: str, cancel: Cancel) -> Stamp:
        """Ask for the headers; where they are refused or say too little, for the first byte."""
        try:
            with _Exchange(self, url, "HEAD", {}, cancel) as answer:
                size = answer.response.getheader("Content-Length", "")
                if _SIZE.fullmatch(size) and answer.response.status == 200:
                    return Stamp(int(size), _version(answer.response))
        except HttpStatusError as error:
            if error.status not in _OTHER_REQUEST:
                raise
        with _Exchange(self, url, "GET", {"Range": "bytes=0-0"}, cancel) as answer:
            answer.spoiled = True
            found = CONTENT_RANGE.fullmatch(answer.response.getheader("Content-Range", ""))
            if answer.response.status == 206 and found is not None and found[3] != "*":
                answer.spoiled = len(answer.response.read(2)) != 1  # never more, whatever is sent
                return Stamp(int(found[3]), _version(answer.response))
        raise RemoteReadError(
            "the server does not report the file's size", file=url, hint="copy the file to disk first"
        )

    def read(self, url: str, start: int, sizes: Sequence[int], stamp: Stamp, cancel: Cancel) -> list[Data]:
        """Read pieces in one request; an answer of another range, size, version or encoding is refused."""
        stop = start + sum(sizes)
        with _Exchange(self, url, "GET", {"Range": f"bytes={start}-{stop - 1}"}, cancel) as answer:
            answer.spoiled = True  # until all of the body was read
            _check(answer.response, url, start, stop, stamp)
            cancel.begins()
            # Each piece into memory of its own, so that one can be let go without the others.
            pieces = [self._buffers.lend(size) for size in sizes]
            answer.fill(pieces, stop)
        return [piece.toreadonly() for piece in pieces]

    def read_tail(self, url: str, size: int, cancel: Cancel) -> tuple[Stamp, Data] | None:
        """Read the end of a file; None where the server's answer is of other bytes, or does not tell how many it has.

        A host that has shown that it does not know such requests is not sent another.
        """
        origin = _origin(url)
        if origin in self._without_tails:
            return None
        try:
            with _Exchange(self, url, "GET", {"Range": f"bytes=-{size}"}, cancel) as answer:
                answer.spoiled = True
                response = answer.response
                if response.status == 416:  # an empty file, mostly
                    return None
                if response.status == 200:
                    whole = response.length if response.length is not None and response.length <= size else None
                else:
                    whole = whole_size(CONTENT_RANGE.fullmatch(response.getheader("Content-Range", "")), size)
                if whole is None:
                    self._without_tails.add(origin)
                    return None
                stamp = Stamp(whole, _version(response))
                start = max(0, whole - size)
                _check(response, url, start, whole, stamp)
                tail = memoryview(bytearray(whole - start))
                answer.fill([tail], whole)
                return stamp, tail
        except HttpStatusError as error:
            if error.status not in _OTHER_REQUEST:
                raise
            return None

    def _ask(
        self, url: str, method: str, headers: Mapping[str, str], cancel: Cancel
    ) -> tuple[_Origin, http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request where the URL leads, and return the first answer that is not a redirect."""
        home = _origin(url)
        where = self._moved.get(url, url)
        for _ in range(MAX_REDIRECTS + 1):
            origin = _origin(where)
            own = {**_credentials(url), **self._headers} if origin.netloc == home.netloc else {}
            connection, response = self._send(origin, where, method, {**own, **headers}, cancel)
            if response.status not in (301, 302, 303, 307, 308):
                if response.status >= 400 and where != url and self._moved.pop(url, None) is not None:
                    connection.close()  # the place it led to is no more: ask where it leads now
                    where = url
                    continue
                if where != url:
                    self._moved[url] = where
                return origin, connection, response
            target = urljoin(where, response.getheader("Location", ""))
            connection.close()
            if urlsplit(target).scheme not in ("http", "https") or origin.scheme == "https" != _origin(target).scheme:
                raise RemoteReadError(
                    "refused to follow a redirect", file=url, to=target[:200], hint="give the final URL of the file"
                )
            where = target
        raise RemoteReadError("too many redirects", file=url, at_most=MAX_REDIRECTS)

    def _send(
        self, origin: _Origin, url: str, method: str, headers: Mapping[str, str], cancel: Cancel
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = urlsplit(url)
        target = quote(parts.path or "/", safe="/%:=&~+!$,;'@()*") + (f"?{parts.query}" if parts.query else "")
        with self._lock:
            idle = self._idle.get(origin)
            kept = idle.pop() if idle else None
        while True:
            connection = kept or self._connect(origin)
            try:
                cancel.on_cancel(lambda connection=connection: _hang_up(connection))
                connection.request(method, target, headers={"Accept-Encoding": "identity", **headers})
                if cancel.cancelled:  # before there was a socket to hang up
                    raise TimeoutError("the request was abandoned")
                return connection, connection.getresponse()
            except _BROKEN:
                connection.close()
                # One that was kept may have been closed by the server meanwhile.
                if kept is None or cancel.cancelled:
                    raise
                kept = None
            except BaseException:
                connection.close()
                raise

    def _connect(self, origin: _Origin) -> http.client.HTTPConnection:
        if origin.scheme == "http":
            return http.client.HTTPConnection(origin.netloc, timeout=self._timeout)
        self._tls = self._tls or ssl.create_default_context()
        return http.client.HTTPSConnection(origin.netloc, timeout=self._timeout, context=self._tls)

    def _keep(self, origin: _Origin, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault(origin, [])
            if len(idle) < MAX_IDLE:
                idle.append(connection)
                return
        connection.close()


class _Exchange:
    """A request and its answer; on leaving, the connection is kept if the answer was read to its end, else closed."""

    def __init__(
        self,
        transport: HttpTransport,
        url: str,
        method: str,
        headers: Mapping[str, str],
        cancel: Cancel,
    ) -> None:
        self._transport = transport
        self._origin, self.connection, self.response = transport._ask(url, method, headers, cancel)
        self._method = method
        self.spoiled = False

    def __enter__(self) -> _Exchange:
        if self.response.status >= 400 and self.response.status != 416:
            wait = self.response.getheader("Retry-After", "")
            error = HttpStatusError(self.response.status, self.response.reason, wait)
            if self._method == "HEAD" or self.response.length == 0:
                self.response.read()
                self._transport._keep(self._origin, self.connection)
            else:
                self.connection.close()
            raise error
        return self

    def fill(self, pieces: list[memoryview], stop: int) -> None:
        """Read the body, which ends before byte ``stop`` of the file, into pieces of memory."""
        if read_body(self.connection, self.response, pieces) < sum(map(len, pieces)):
            raise WrongAnswer(f"the body ended before byte {stop}")
        if self.response.length is None and self.response.read(1):
            raise WrongAnswer("more bytes came than were asked for")
        self.spoiled = False

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None and not self.spoiled and not self.response.will_close:
            if self._method == "HEAD":
                self.response.read()
            self._transport._keep(self._origin, self.connection)
        else:
            self.connection.close()


def _check(response: http.client.HTTPResponse, url: str, start: int, stop: int, stamp: Stamp) -> None:
    """Raise unless an answer is of the range, size and version asked for, as it is stored."""
    if response.status == 416 or not _same_version(_version(response), stamp.version):
        raise changed(url)
    encoding = response.getheader("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise RemoteReadError(
            "the server compresses its answers, so byte ranges cannot be read",
            file=url,
            encoding=encoding,
            hint="turn compression off for these files",
        )
    if response.status == 200:
        if (start, stop) != (0, stamp.size):
            raise RemoteReadError(
                "the server does not send byte ranges",
                file=url,
                hint="copy the files to disk, or to a server that supports the Range header",
            )
    elif response.status == 206:
        found = CONTENT_RANGE.fullmatch(response.getheader("Content-Range", ""))
        if found is None or (int(found[1]), int(found[2])) != (start, stop - 1):
            got = response.getheader("Content-Range", "")[:80]
            raise WrongAnswer(f"the server sent {got!r} for bytes {start} to {stop - 1}")
        if found[3] not in ("*", str(stamp.size)):
            raise changed(url)
    else:
        raise HttpStatusError(response.status, response.reason)
    if response.length is not None and response.length != stop - start:
        raise WrongAnswer(f"{response.length} bytes were announced for the range {start} to {stop}")


def _version(response: http.client.HTTPResponse) -> str:
    return response.getheader("ETag") or response.getheader("Last-Modified") or UNVERSIONED


def _same_version(found: str, known: str) -> bool:
    """Compare tags with tags and dates with dates; what cannot be compared says nothing."""
    if UNVERSIONED in (found, known) or found.endswith('"') != known.endswith('"'):
        return True
    return found.removeprefix("W/") == known.removeprefix("W/")


def _seconds_until(told: str) -> float | None:
    """Return how many seconds a ``Retry-After`` header asks to wait; None where it says nothing that can be read."""
    if _SIZE.fullmatch(told):
        return float(told)
    try:
        return parsedate_to_datetime(told).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _origin(url: str) -> _Origin:
    parts = urlsplit(url)
    return _Origin(parts.scheme, parts.netloc.rpartition("@")[2])


def _credentials(url: str) -> dict[str, str]:
    """Return the header that sends the user and password of a URL."""
    given, found, _ = urlsplit(url).netloc.rpartition("@")
    return {"Authorization": "Basic " + b64encode(unquote(given).encode()).decode("ascii")} if found else {}


def _close_all(idle: dict[_Origin, list[http.client.HTTPConnection]]) -> None:
    for connections in idle.values():
        for connection in connections:
            connection.close()


def _hang_up(connection: http.client.HTTPConnection) -> None:
    """Wake the thread that reads from a connection with an error."""
    try:
        connection.sock.shutdown(socket.SHUT_RDWR)
    except (OSError, AttributeError):  # not open yet, or closed already
        return
