"""Redis or Valkey as a store: compare-and-set by a Lua script, durable by its append-only file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import ConfigError, MissingDependencyError

__all__ = ["RedisStore"]

# One round trip, and atomic: a script runs alone.
_COMPARE_SET = """
local current = redis.call('GET', KEYS[1])
if (current or '') == ARGV[1] then
    redis.call('SET', KEYS[1], ARGV[2])
    return ARGV[2]
end
return current or ''
"""


class RedisStore:
    """A Redis or Valkey server, version 6 or later (tested with 7).

    The server must write every command to disk before it answers (``appendonly yes``, ``appendfsync always``):
    otherwise a killed server may lose commits that it has acknowledged. Use a single server, or one whose replicas are
    never promoted automatically: a replica may lag behind. The server must not evict keys to free memory
    (``maxmemory-policy allkeys-…``).

    Args:
        url: ``redis://[[user]:password@]host:port[/database]``, or ``rediss://`` for TLS.
        timeout: seconds after which a server that does not answer counts as unreachable.
        durable: False accepts a server that may lose answered writes; the store is then treated like a TCPStore, and a
            lost connection means that the store is lost.
    """

    max_value_bytes = 4 << 20

    def __init__(self, url: str, *, timeout: float = 5.0, durable: bool = True) -> None:
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise MissingDependencyError("RedisStore needs redis-py", hint="pip install 'holdfast[redis]'") from error
        self.url = url
        self.durable = durable
        self._timeout = timeout
        self._failures = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError)
        try:
            # redis-py must not retry: it would send a counter's increment twice. One connection, so that a second one
            # means that the first was lost.
            pool = redis.BlockingConnectionPool.from_url(
                url,
                max_connections=1,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
                redis_connect_func=self._connected,
            )
            self._client: Any = redis.Redis(connection_pool=pool)
        except ValueError as error:
            raise ConfigError("invalid address of a Redis server", url=url, hint=str(error)) from error
        self._compare_set = self._client.register_script(_COMPARE_SET)
        self._checked = not durable
        self._in_touch = False

    def _connected(self, connection: Any) -> None:
        """Raise once if redis-py has silently reconnected."""
        if self._in_touch:
            self._in_touch = False
            raise self._failures[0]("the connection was lost")
        connection.on_connect()
        self._in_touch = True

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            if not self._checked:
                self._check_durability()
            return question()
        except self._failures as error:
            self._in_touch = False
            raise ConnectionError(f"the Redis server cannot be reached: {error}") from error

    def _check_durability(self) -> None:
        """Refuse a server that is configured to lose writes; one that does not let us ask is trusted."""
        import redis

        try:
            asked = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")
            found = {key: value for name in asked for key, value in self._client.config_get(name).items()}
        except redis.ResponseError:  # managed servers forbid CONFIG
            found = {}
        self._checked = True
        forgets = found.get("appendonly", "yes") != "yes" or found.get("appendfsync", "always") != "always"
        evicts = found.get("maxmemory", "0") != "0" and found.get("maxmemory-policy", "").startswith("allkeys")
        if forgets or evicts:
            self._checked = False
            when = "when it is killed" if forgets else "when its memory is full"
            raise ConfigError(
                f"this Redis server would lose answered writes {when}",
                url=self.url,
                **found,
                hint="start it with --appendonly yes --appendfsync always, or pass durable=False"
                if forgets
                else "start it with --maxmemory-policy noeviction",
            )

    def get(self, key: str) -> bytes | None:
        """Same as in the contract."""
        found: bytes | None = self._ask(lambda: self._client.get(key))
        return found

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Same as in the contract."""
        if not keys:
            return []
        found: list[bytes | None] = self._ask(lambda: self._client.mget(list(keys)))
        return found

    def set(self, key: str, value: bytes) -> None:
        """Same as in the contract."""
        self._ask(lambda: self._client.set(key, value))

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Same as in the contract."""
        found: bytes = self._ask(lambda: self._compare_set(keys=[key], args=[expected, desired]))
        return found

    def add(self, key: str, amount: int) -> int:
        """Same as in the contract."""
        return int(self._ask(lambda: self._client.incrby(key, amount)))

    def delete(self, key: str) -> bool:
        """Same as in the contract."""
        return bool(self._ask(lambda: self._client.delete(key)))

    def clone(self) -> RedisStore:
        """Same as in the contract."""
        return RedisStore(self.url, timeout=self._timeout, durable=self.durable)

    def close(self) -> None:
        """Same as in the contract."""
        self._client.close()
