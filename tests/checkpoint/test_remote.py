"""Checkpoints behind URLs: the same engine, the same checks, in ranged reads."""

from __future__ import annotations

import functools
import http.server
import pickle
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from tests.checkpoint.support import State, assert_same, blank, random_bits, save
from tests.cli.calling import call

from holdfast import checkpoint
from holdfast.checkpoint import verify_checkpoint
from holdfast.checkpoint.metadata_files import read_checkpoint_metadata
from holdfast.checkpoint.remote import RemoteFiles
from holdfast.errors import CheckpointError, CheckpointReadError, CorruptRecordError, UnusableCheckpointError

SAVED: State = {"model": {"large": random_bits(3_000_000, seed=1), "small": random_bits(30, 4, seed=2)}, "step": 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("remote") / "c"
    checkpoint.save(SAVED, path, step=7)
    return path


@pytest.fixture
def memory(folder: Path) -> Iterator[str]:
    system = fsspec.filesystem("memory")
    for path in folder.iterdir():
        system.pipe_file(f"/bucket/c/{path.name}", path.read_bytes())
    yield "memory://bucket/c"
    system.rm("/bucket", recursive=True)


def test_a_checkpoint_behind_a_url_loads_and_verifies(memory: str) -> None:
    state = blank(SAVED)
    report = checkpoint.load(state, memory, require_manifest=True)
    assert_same(state, SAVED)
    assert (report.verified, report.unverified) == (3, ())
    assert verify_checkpoint(memory).sound


def test_damage_behind_a_url_is_named(memory: str) -> None:
    system = fsspec.filesystem("memory")
    data = bytearray(system.cat_file("/bucket/c/__0_0.distcp"))
    data[len(data) // 2] ^= 4
    system.pipe_file("/bucket/c/__0_0.distcp", bytes(data))
    with pytest.raises(CorruptRecordError) as caught:
        checkpoint.load(blank(SAVED), memory)
    assert caught.value.tensor == "model.large"
    assert verify_checkpoint(memory).verdict == "damaged"


@pytest.mark.parametrize(
    "url", ["memory://bucket/nothing", "nosuchthing://x/y", "reference://x", "zip://x", "dir://x", "tar://a::b"]
)
def test_nothing_behind_a_url_is_one_error(url: str) -> None:
    with pytest.raises(UnusableCheckpointError):
        checkpoint.load(blank(SAVED), url)


class Flaky(http.server.SimpleHTTPRequestHandler):
    """Serves ranges, and fails every third request for data."""

    count = 0
    faults = True

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        data = Path(self.translate_path(self.path))
        if not data.is_file():
            self.send_error(404)
            return
        content = data.read_bytes()
        Flaky.count += 1
        if self.faults and Flaky.count % 3 == 0:
            self.send_error(503)
            return
        first, last = 0, len(content) - 1
        wanted = self.headers.get("Range", "")
        if wanted.startswith("bytes="):
            begin, _, end = wanted[6:].partition("-")
            first, last = int(begin), min(int(end or last), last)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        self.wfile.write(content[first : last + 1])


class Boundless(Flaky):
    """Answers every request for data with far more than was asked for."""

    faults = False
    packed = False
    sent = 0

    def do_GET(self) -> None:
        if self.command == "HEAD" or not Path(self.translate_path(self.path)).is_file():
            super().do_GET()
            return
        self.protocol_version = "HTTP/1.1"
        self.send_response(206)
        self.send_header("Transfer-Encoding", "chunked")
        if self.packed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        part = (zlib.compress(bytes(1 << 24), wbits=31) if self.packed else bytes(1 << 20)) + b"\r\n"
        with suppress(OSError):  # the client has seen enough
            for _ in range(64):
                self.wfile.write(f"{len(part) - 2:x}\r\n".encode() + part)
                type(self).sent += 1
            self.wfile.write(b"0\r\n\r\n")


class Packed(Boundless):
    """Packs it, too."""

    packed = True
    sent = 0


class Ranges(Flaky):
    """Serves ranges, without fail."""

    faults = False


@contextmanager
def served(folder: Path, handler: type[http.server.SimpleHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a checkpoint behind a web server."""
    bound = functools.partial(handler, directory=str(folder.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), bound) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/{folder.name}"
        finally:
            server.shutdown()
            thread.join()


def test_a_web_server_that_fails_now_and_then_is_asked_again(folder: Path) -> None:
    with served(folder, Flaky) as url:
        state = blank(SAVED)
        checkpoint.load(state, url, num_workers=2)
        assert_same(state, SAVED)
    assert Flaky.count > 6


def test_a_file_outside_the_folder_cannot_be_reached_by_escapes_in_a_url(tmp_path: Path) -> None:
    metadata = read_checkpoint_metadata(save({"w": torch.ones(3)}, tmp_path / "c"))
    (place,) = metadata.storage_data.values()
    (tmp_path / "c" / place.relative_path).rename(tmp_path / "outside")
    for name, refused in (("%2e%2e/outside", True), ("#1 %2e.distcp", False)):
        place.relative_path = name
        (tmp_path / "c" / ".metadata").write_bytes(pickle.dumps(metadata))
        if not refused:
            (tmp_path / "outside").rename(tmp_path / "c" / name)
        with served(tmp_path / "c", Ranges) as url:
            assert verify_checkpoint(url).sound is not refused


class Rangeless(http.server.SimpleHTTPRequestHandler):
    """Sends entire files, whatever range is asked for."""

    def log_message(self, *_: Any) -> None:
        pass


class Broken(Rangeless):
    """Has the metadata, and fails for the data."""

    def do_GET(self) -> None:
        if self.path.endswith(".distcp"):
            self.send_error(500)
        else:
            super().do_GET()


@pytest.mark.parametrize(("handler", "reason"), [(Rangeless, "entire files"), (Broken, "500")])
def test_a_web_server_at_fault_is_not_damage(
    folder: Path, handler: type[Rangeless], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.checkpoint.remote.FIRST_PAUSE_SECONDS", 0.0)
    with served(folder, handler) as url:
        for use in (verify_checkpoint, functools.partial(checkpoint.load, blank(SAVED))):
            with pytest.raises(CheckpointReadError, match=reason):
                use(url)


def test_a_store_that_always_fails_is_one_error(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.checkpoint.remote.FIRST_PAUSE_SECONDS", 0.0)

    def failing(*_: Any, **__: Any) -> bytes:
        raise ConnectionError("gone")

    layer = RemoteFiles(memory)
    monkeypatch.setattr(layer._system, "cat_file", failing)
    with pytest.raises(CheckpointError, match="gone"):
        checkpoint.load({"model": {"large": torch.zeros(3_000_000)}}, "/", file_layer=layer)


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_in_s3_loads_and_verifies(folder: Path) -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": f"http://{host}:{port}"}}
        system = fsspec.filesystem("s3", skip_instance_cache=True, **options)
        system.mkdir("runs")
        for path in folder.iterdir():
            system.pipe_file(f"runs/c/{path.name}", path.read_bytes())
        layer = RemoteFiles("s3://runs/c", **options)
        state = blank(SAVED)
        report = checkpoint.load(state, layer.url, file_layer=layer, num_workers=4)
        assert_same(state, SAVED)
        assert report.verified == 3
        assert verify_checkpoint("/", file_layer=layer).sound
    finally:
        server.stop()


def test_a_store_that_does_not_answer_says_nothing_about_the_checkpoint() -> None:
    pytest.importorskip("aiohttp")
    with pytest.raises(CheckpointReadError, match="cannot be reached") as caught:
        verify_checkpoint("http://127.0.0.1:9/x")
    assert caught.value.where["folder"] == "http://127.0.0.1:9/x"


def test_a_missing_file_behind_a_url_is_named(memory: str) -> None:
    fsspec.filesystem("memory").rm("/bucket/c/__0_0.distcp")
    with pytest.raises(CheckpointReadError) as caught:
        checkpoint.load(blank(SAVED), memory)
    assert caught.value.where["file"] == "__0_0.distcp"


def test_an_absent_checkpoint_behind_a_url_is_named_by_its_url() -> None:
    with pytest.raises(UnusableCheckpointError) as caught:
        verify_checkpoint("memory://bucket/absent")
    assert caught.value.where["folder"] == "memory://bucket/absent"


@pytest.mark.parametrize("server", [Boundless, Packed])
def test_of_a_server_that_sends_more_than_was_asked_for_no_more_is_taken(folder: Path, server: type[Boundless]) -> None:
    with served(folder, server) as url, pytest.raises(CheckpointReadError, match="the server sends"):
        verify_checkpoint(url)
    assert server.sent < 64


def test_the_command_takes_urls(memory: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    urls = (memory, f"file://{folder}", "memory://bucket/nothing")
    assert [call(capsys, "verify", url).code for url in urls] == [0, 0, 2]
