"""Real servers on loopback that remote sources are tested against."""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# How long no request may come before those that wait are answered; longer makes the count of rounds surer.
QUIET_SECONDS = 0.5


class FaultyServer:
    """An HTTP server of byte ranges that fails on demand.

    ``faults`` names what happens to the next GET requests, one each: ``"500"``, ``"503"``, ``"429"``, ``"reset"`` (the
    connection is reset before an answer), ``"truncated"`` (half of the body, then the connection closes), ``"short"``
    (half of the body, called whole), ``"stall"`` (no answer until `release`), ``"404"``, ``"another range"``,
    ``"more"`` (more bytes than asked for), ``"gzip"`` (called compressed), ``"whole"`` (the range ignored), or
    ``"ok"``.

    ``suffixes`` says what becomes of requests for the last bytes of a file (``bytes=-N``): ``"sent"``, ``"ignored"``
    (all of the file comes), ``"first"`` (the first ones come), ``"unsized"`` (the answer does not tell the file's size)
    or ``"416"``.

    A name below ``moved`` is redirected to the rest of it, or to what ``moves`` says.

    With ``in_rounds``, answers wait until no further request has come for a moment, and then go together: ``rounds``
    counts how many requests had to wait for one another.
    """

    def __init__(self, files: dict[str, bytes], *, in_rounds: bool = False) -> None:
        self.moves: dict[str, str] = {}
        self.suffixes = "sent"
        self.heads = 0
        self.headers: list[dict[str, str]] = []
        self.rounds = 0
        self.round_of: dict[tuple[str, int, int], int] = {}  # the round in which each range was first sent
        self._in_rounds = in_rounds
        self._gate = threading.Condition()
        self._waiting = 0
        self.files = files
        self.faults: deque[str] = deque()
        self.ranges: list[tuple[str, int, int]] = []
        self.tags: dict[str, str] = {}
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or every body waits 40 ms for the client to acknowledge its headers

            def do_HEAD(self) -> None:
                server._answer(self, body=False)

            def do_GET(self) -> None:
                server._answer(self, body=True)

            def log_message(self, *arguments: Any) -> None:
                return

        class Server(ThreadingHTTPServer):
            request_queue_size = 256  # connections that come at once

            def handle_error(self, request: Any, client_address: Any) -> None:
                return  # clients that hang up mid-answer are part of the tests

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._lock = threading.Lock()
        self._released = threading.Event()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/{name}"

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        return self

    def release(self) -> None:
        """Let the answers that were held back go."""
        self._released.set()

    def __exit__(self, *exc: object) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _wait_for_round(self) -> None:
        with self._gate:
            self._waiting += 1
            this = self.rounds
            while self.rounds == this:
                before = self._waiting
                # Whoever has waited alone for long enough lets everybody go.
                if not self._gate.wait(QUIET_SECONDS) and self.rounds == this and self._waiting == before:
                    self.rounds += 1
                    self._waiting = 0
                    self._gate.notify_all()

    def _answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        name = handler.path.lstrip("/").partition("?")[0]
        if self._in_rounds:
            self._wait_for_round()
        with self._lock:
            self.heads += not body
            self.headers.append(dict(handler.headers.items()))
        if name.startswith("moved/"):
            handler.send_response(302)
            handler.send_header("Location", self.moves.get(name, "/" + name.removeprefix("moved/")))
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        with self._lock:
            fault = self.faults.popleft() if body and self.faults else "ok"
        if name not in self.files or fault in ("404", "429", "500", "503"):
            handler.send_response(404 if name not in self.files else int(fault))
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        if fault == "reset":
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.close_connection = True
            os.close(handler.connection.detach())  # the handler's own files would keep the socket open
            return
        if fault == "stall":
            self._released.wait()
        whole = self.files[name]
        start, stop = 0, len(whole)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        if fault == "whole":
            asked = None
        if asked:
            start, stop = int(asked[1]), min(int(asked[2]) + 1, len(whole))
        last = re.fullmatch(r"bytes=-(\d+)", handler.headers.get("Range", ""))
        if last and fault != "whole" and self.suffixes != "ignored":
            asked = last
            start = 0 if self.suffixes == "first" else max(0, len(whole) - int(last[1]))
            stop = min(int(last[1]), len(whole)) if self.suffixes == "first" else len(whole)
        if (asked and start == stop) or (last and self.suffixes == "416"):
            handler.send_response(416)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        data = whole[start:stop]
        if body:
            with self._lock:
                self.ranges.append((name, start, stop))
                self.round_of.setdefault((name, start, stop), self.rounds)
        sent = data[: len(data) // 2] if fault in ("truncated", "short") else data
        if fault == "more":
            data = sent = data + b"more"
        if fault == "another range":
            start, stop = start + 1, stop + 1
        handler.send_response(206 if asked else 200)
        handler.send_header("Content-Length", str(len(sent) if fault == "short" else len(data)))
        if fault == "gzip":
            handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Accept-Ranges", "bytes")
        handler.send_header("ETag", self.tags.get(name, '"one"'))
        if asked:
            size = "*" if last and self.suffixes == "unsized" else len(whole)
            handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        handler.end_headers()
        if body:
            handler.wfile.write(sent)
        if fault == "truncated":
            handler.close_connection = True
