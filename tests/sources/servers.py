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


class FaultyServer:
    """An HTTP server of byte ranges that fails on demand.

    ``faults`` names what happens to the next GET requests, one each: ``"500"``, ``"503"``, ``"429"``, ``"reset"`` (the
    connection is reset before an answer), ``"truncated"`` (half of the body, then the connection closes), ``"short"``
    (half of the body, called whole), ``"stall"`` (no answer until `release`), ``"404"``, or ``"ok"``.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.faults: deque[str] = deque()
        self.ranges: list[tuple[str, int, int]] = []
        self.tags: dict[str, str] = {}
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                server._answer(self, body=False)

            def do_GET(self) -> None:
                server._answer(self, body=True)

            def log_message(self, *arguments: Any) -> None:
                return

        class Server(ThreadingHTTPServer):
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

    def _answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        name = handler.path.lstrip("/").partition("?")[0]
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
        if asked:
            start, stop = int(asked[1]), min(int(asked[2]) + 1, len(whole))
        data = whole[start:stop]
        if body:
            with self._lock:
                self.ranges.append((name, start, stop))
        sent = data[: len(data) // 2] if fault in ("truncated", "short") else data
        handler.send_response(206 if asked else 200)
        handler.send_header("Content-Length", str(len(sent) if fault == "short" else len(data)))
        handler.send_header("Accept-Ranges", "bytes")
        handler.send_header("ETag", self.tags.get(name, '"one"'))
        if asked:
            handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(whole)}")
        handler.end_headers()
        if body:
            handler.wfile.write(sent)
        if fault == "truncated":
            handler.close_connection = True
