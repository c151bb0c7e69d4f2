"""The body of an answer, received straight into the memory that it is for.

``http.client`` receives what has arrived and asks again, and between two calls a thread waits for its turn among all
threads of the process. Asked to wait for all of it (``MSG_WAITALL``), the system fills the memory in one call, which
takes a third of the processor time (``bench/remote.py``, *uncached*). Asked to wake the thread only when much has
arrived (``SO_RCVLOWAT``), it saves another tenth of it.
"""

from __future__ import annotations

import socket
import struct
from http.client import HTTPConnection, HTTPResponse

__all__ = ["read_body"]

MAX_BUFFERS = 256  # per call; the system allows 1,024
# A thread is woken when this much has arrived, where more than that is still to come.
WAKE_BYTES = 512 * 2**10


def read_body(connection: HTTPConnection, response: HTTPResponse, pieces: list[memoryview]) -> int:
    """Fill pieces of memory with a body, and return how many bytes came before it ended.

    Raises:
        TimeoutError: nothing came for as long as the connection's timeout.
    """
    sock = connection.sock
    if type(sock) is not socket.socket or response.chunked or response.length is None:  # TLS, or of unknown length
        return _read_by_parts(response, pieces)
    wanted = sum(map(len, pieces))
    ahead = min(len(response.fp.peek(1)), wanted)  # what came with the headers
    left = _split(pieces, ahead)
    done = sum(response.fp.readinto(part) for part in left[0])
    if done == ahead and left[1]:
        done += _receive(sock, left[1])
    if done == wanted == response.length:
        response.close()  # as reading to the end does: the connection can be used again
    return done


def _read_by_parts(response: HTTPResponse, pieces: list[memoryview]) -> int:
    total = 0
    for piece in pieces:
        done = 0
        while done < len(piece):
            count = response.readinto(piece[done:])
            if not count:
                return total + done
            done += count
        total += done
    return total


def _receive(sock: socket.socket, pieces: list[memoryview]) -> int:
    timeout = sock.gettimeout()
    seconds = timeout or 0.0
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    # Python's own timeouts make a socket return what it has; the system's do not.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.settimeout(None)
    total = 0
    most = _split(pieces, max(0, sum(map(len, pieces)) - WAKE_BYTES))
    try:
        # Of the last bytes none may be waited for beyond the end: no more come, and nothing would wake the thread.
        for least, part in zip((WAKE_BYTES, 1), most, strict=True):
            if part:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            while part:
                count = sock.recvmsg_into(part[:MAX_BUFFERS], 0, socket.MSG_WAITALL)[0]
                if not count:
                    return total
                total += count
                part = _split(part, count)[1]
    except BlockingIOError as error:
        raise TimeoutError("timed out") from error
    finally:
        sock.settimeout(timeout)
    return total


def _split(pieces: list[memoryview], size: int) -> tuple[list[memoryview], list[memoryview]]:
    """Return the first ``size`` bytes of pieces, and the rest."""
    before: list[memoryview] = []
    for number, piece in enumerate(pieces):
        if size < len(piece):
            return [*before, piece[:size]] if size else before, [piece[size:], *pieces[number + 1 :]]
        before.append(piece)
        size -= len(piece)
    return before, []
