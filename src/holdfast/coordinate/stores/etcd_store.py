"""etcd as a store: compare-and-set by v3 transactions, durable and replicated by Raft."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import ConfigError, MissingDependencyError

__all__ = ["EtcdStore"]

# etcd refuses a transaction of more than 128 operations unless configured otherwise (--max-txn-ops).
MAX_READS = 128


class EtcdStore:
    """An etcd cluster, 3.4 or later, reached through its HTTP gateway.

    Every answered write is on the disks of a majority, so the store survives the loss of any minority of its hosts.
    holdfast does not use etcd's leases: those expire by the server's clock, while holdfast's expire by the observer's,
    so that a server that was paused does not end the leases of living workers.

    Args:
        url: ``etcd://host:port`` (or ``http://``, ``https://``) of a member, or of a load balancer in front of the
            members.
        timeout: seconds after which a server that does not answer counts as unreachable.
        ca_cert: certificate authority file for ``https``.
        cert: client certificate file and key file for ``https``.
    """

    # etcd refuses requests above 1.5 MiB, and the gateway's Base64 adds a third.
    max_value_bytes = 1 << 20
    durable = True

    def __init__(
        self, url: str, *, timeout: float = 5.0, ca_cert: str | None = None, cert: tuple[str, str] | None = None
    ) -> None:
        try:
            from etcd3gw import exceptions
            from etcd3gw.client import Etcd3Client
            from requests import RequestException
        except ImportError as error:
            raise MissingDependencyError("EtcdStore needs etcd3gw", hint="pip install 'holdfast[etcd]'") from error
        parts = urlsplit(url)
        if parts.scheme not in ("etcd", "http", "https") or not parts.hostname or parts.port is None:
            raise ConfigError("the address of an etcd server is etcd://host:port", url=url)
        self.url = url
        self._options: dict[str, Any] = {"timeout": timeout, "ca_cert": ca_cert, "cert": cert}
        self._client = Etcd3Client(
            host=parts.hostname,
            port=parts.port,
            protocol="https" if parts.scheme == "https" else "http",
            ca_cert=ca_cert,
            cert_cert=None if cert is None else cert[0],
            cert_key=None if cert is None else cert[1],
            timeout=timeout,
            api_path="/v3/",
        )
        self._revision = 0  # of the newest answer; a server with a lower revision is not the one that gave it
        self._failures = (
            exceptions.ConnectionFailedError,
            exceptions.ConnectionTimeoutError,
            exceptions.InternalServerError,  # no leader, or the request was not agreed on in time
            RequestException,  # the connection broke during the answer, or before its content
        )

    def _transact(self, transaction: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = {**self._client.transaction(transaction)}
        except self._failures as error:
            raise ConnectionError(f"the etcd server cannot be reached: {error}") from error
        revision = int(answer["header"]["revision"])
        if revision < self._revision:
            self._revision = 0
            raise ConnectionError("the etcd server's revision went backwards: it may be a different server")
        self._revision = revision
        return answer

    def get(self, key: str) -> bytes | None:
        """Same as in the contract."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Same as in the contract."""
        found: list[bytes | None] = []
        for first in range(0, len(keys), MAX_READS):
            reads = [{"request_range": {"key": _encode(key)}} for key in keys[first : first + MAX_READS]]
            answer = self._transact({"success": reads})
            found += [_value(part) for part in answer["responses"]]
        return found

    def set(self, key: str, value: bytes) -> None:
        """Same as in the contract."""
        self._transact({"success": [{"request_put": {"key": _encode(key), "value": _encode(value)}}]})

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Same as in the contract."""
        return self._swap(key, expected, desired)[1]

    def _swap(self, key: str, expected: bytes, desired: bytes) -> tuple[bool, bytes]:
        """Return whether this call wrote, and the value afterwards."""
        condition: dict[str, Any] = {"key": _encode(key), "result": "EQUAL"}
        if expected:
            condition |= {"target": "VALUE", "value": _encode(expected)}
        else:
            condition |= {"target": "VERSION", "version": 0}
        answer = self._transact(
            {
                "compare": [condition],
                "success": [{"request_put": {"key": _encode(key), "value": _encode(desired)}}],
                "failure": [{"request_range": {"key": _encode(key)}}],
            }
        )
        if answer.get("succeeded"):
            return True, desired
        return False, _value(answer["responses"][0]) or b""

    def add(self, key: str, amount: int) -> int:
        """Same as in the contract: etcd has no counters, so this reads and swaps until no other client interferes."""
        found = self.get(key) or b""
        while True:
            total = str(int(found or b"0") + amount).encode()
            if total == found:
                return int(total)
            written, seen = self._swap(key, found, total)
            if written:  # do not compare the total instead: another client may have reached the same
                return int(total)
            found = seen

    def delete(self, key: str) -> bool:
        """Same as in the contract."""
        answer = self._transact({"success": [{"request_delete_range": {"key": _encode(key)}}]})
        return int(answer["responses"][0]["response_delete_range"].get("deleted", 0)) > 0

    def clone(self) -> EtcdStore:
        """Same as in the contract."""
        return EtcdStore(self.url, **self._options)

    def close(self) -> None:
        """Same as in the contract."""
        self._client.session.close()


def _encode(text: str | bytes) -> str:
    return b64encode(text.encode() if isinstance(text, str) else text).decode()


def _value(part: dict[str, Any]) -> bytes | None:
    found = part["response_range"].get("kvs", [])
    return b64decode(found[0]["value"]) if found else None
