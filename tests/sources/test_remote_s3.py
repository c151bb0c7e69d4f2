"""Remote files in an S3 bucket: a real S3 server (moto) on loopback, with faults put in front of it."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.server import ThreadedMotoServer
from tests.sources.support import plain, rows

from holdfast.errors import RemoteReadError
from holdfast.sources import JsonlSource, RemoteOptions, TokenFileSource
from holdfast.sources.remote import RemoteFile
from holdfast.testing import check_source


def storage(endpoint: str) -> dict[str, Any]:
    return {"key": "test", "secret": "test", "endpoint_url": endpoint, "client_kwargs": {"region_name": "eu-west-1"}}


class Faults:
    """Answers the next GETs of ranges with a 500, a dropped connection or half a body; passes the rest on."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self.next: deque[str] = deque()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        is_read = environ["REQUEST_METHOD"] == "GET" and environ.get("HTTP_RANGE")
        fault = self.next.popleft() if is_read and self.next else "ok"
        if fault == "500":
            start_response("500 Internal Server Error", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InternalError</Code><Message>try again</Message></Error>"]
        if fault == "dropped":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        answer: Iterable[bytes] = self._application(environ, start_response)
        if fault == "truncated":
            return [b"".join(answer)[:-10]]
        return answer


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[str, Faults]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    assert server._server is not None
    faults = Faults(DomainDispatcherApplication(create_backend_app))
    server._server.app = faults
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    system = fsspec.filesystem("s3", **storage(endpoint))
    system.mkdir("data")
    for number in range(2):
        tokens = np.arange(number * 5000, (number + 1) * 5000, dtype=np.uint16)
        system.pipe_file(f"data/tokens/{number}.bin", tokens.tobytes())
    lines = "".join(json.dumps({"id": i, "text": f"line {i}"}) + "\n" for i in range(400))
    system.pipe_file("data/lines.jsonl", lines.encode())
    yield endpoint, faults
    server.stop()


@pytest.fixture
def options(bucket: tuple[str, Faults], tmp_path: Path) -> RemoteOptions:
    return RemoteOptions(
        storage_options=storage(bucket[0]), cache_dir=tmp_path / "blocks", block_size=2000, first_pause=0.001
    )


def test_a_folder_in_a_bucket_keeps_the_contract(options: RemoteOptions) -> None:
    source = TokenFileSource("s3://data/tokens", 50, remote=options)
    assert source.shards() == [100, 100]
    check_source(source)
    assert plain(source.read(rows(199, 0)), "tokens")[0].tolist() == list(range(9950, 10_000))


def test_a_glob_in_a_bucket_is_what_it_matches(options: RemoteOptions) -> None:
    assert TokenFileSource("s3://data/tokens/1*.bin", 50, remote=options).files == ["s3://data/tokens/1.bin"]


def test_lines_in_a_bucket_keep_the_contract(options: RemoteOptions, tmp_path: Path) -> None:
    check_source(JsonlSource("s3://data/lines.jsonl", index_dir=tmp_path, remote=options))


@pytest.mark.parametrize("fault", ["500", "dropped", "truncated"])
def test_a_transient_fault_is_tried_again(bucket: tuple[str, Faults], options: RemoteOptions, fault: str) -> None:
    faults = bucket[1]
    source = TokenFileSource("s3://data/tokens/*.bin", 50, remote=options)
    assert len(source) == 200
    faults.next.extend([fault, fault])
    assert plain(source.read(rows(150)), "tokens")[0].tolist() == list(range(7500, 7550))
    assert not faults.next
    assert source.counters.counts().samples_remote == 1


def test_an_object_that_is_not_there_is_refused_by_name(options: RemoteOptions) -> None:
    with pytest.raises(RemoteReadError, match=r"s3://data/none\.bin") as caught:
        len(TokenFileSource("s3://data/none.bin", 50, remote=options))
    assert caught.value.attempts == 1


def test_the_end_of_an_object_comes_with_its_size_and_version(
    bucket: tuple[str, Faults], options: RemoteOptions
) -> None:
    counted = RemoteFile("s3://data/tokens/1.bin", options)
    fsspec.filesystem("s3", **storage(bucket[0])).pipe_file("data/empty.bin", b"")
    whole = np.arange(5000, 10_000, dtype=np.uint16).tobytes()
    assert counted.read_tail(700) == whole[-700:]
    assert counted.stamp() == RemoteFile("s3://data/tokens/1.bin", options).stamp()
    assert RemoteFile("s3://data/tokens/1.bin", options).read_tail(20_000) == whole
    assert RemoteFile("s3://data/empty.bin", options).read_tail(10) == b""
    assert counted.read(0, 10_000) == whole  # of the version that the answer told
