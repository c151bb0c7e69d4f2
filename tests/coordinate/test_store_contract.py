"""``check_store`` finds out stores that break one rule, each in a way that real ones do, and ends whatever they do."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.testing import check_store


class Plain:
    """A correct store in this process's memory."""

    durable = False
    max_value_bytes = 1 << 16

    def __init__(self, values: dict[str, bytes] | None = None, lock: Any = None) -> None:
        self.values = {} if values is None else values
        self.lock = lock or threading.RLock()
        self.calls = 0

    def get(self, key: str) -> bytes | None:
        with self.lock:
            return self.values.get(key)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def set(self, key: str, value: bytes) -> None:
        with self.lock:
            self.values[key] = value

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        with self.lock:
            if self.values.get(key, b"") != expected:
                return self.values.get(key, b"")
            self.values[key] = desired
            return desired

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(total).encode()
            return total

    def delete(self, key: str) -> bool:
        with self.lock:
            return self.values.pop(key, None) is not None

    def clone(self) -> Plain:
        return type(self)(self.values, self.lock)

    def close(self) -> None:
        pass

    def pause(self) -> None:
        """Let other threads run."""
        time.sleep(0)

    def every(self, count: int) -> bool:
        self.calls += 1
        return self.calls % count == 0


class ComparesInTwoSteps(Plain):
    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        found = self.get(key) or b""
        if found == expected:
            self.pause()
            self.set(key, desired)
            return desired
        return found


class CreatesInTwoSteps(ComparesInTwoSteps):
    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        if expected:
            return Plain.compare_set(self, key, expected, desired)
        return super().compare_set(key, expected, desired)


class ReplacesInTwoSteps(ComparesInTwoSteps):
    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        if expected:
            return super().compare_set(key, expected, desired)
        return Plain.compare_set(self, key, expected, desired)


class AnswersAndForgets(Plain):
    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        if self.every(30) and (self.get(key) or b"") == expected:
            return desired
        return super().compare_set(key, expected, desired)


class LosesAWrite(Plain):
    def set(self, key: str, value: bytes) -> None:
        if not self.every(50):
            super().set(key, value)


class LosesADelete(Plain):
    def delete(self, key: str) -> bool:
        return self.get(key) is not None if self.every(50) else super().delete(key)


class DeletesInTwoSteps(Plain):
    def delete(self, key: str) -> bool:
        if self.get(key) is None:
            return False
        self.pause()
        super().delete(key)
        return True


class DeletesWhatIsBelow(Plain):
    def delete(self, key: str) -> bool:
        for other in [other for other in self.values if other.startswith(key + "/")]:
            super().delete(other)
        return super().delete(key)


class Remembers(Plain):
    """A client that keeps what it read, but for what it wrote itself."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.known: dict[str, bytes | None] = {}

    def get(self, key: str) -> bytes | None:
        return self.known.setdefault(key, super().get(key))

    def set(self, key: str, value: bytes) -> None:
        self.known.pop(key, None)
        super().set(key, value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        self.known.pop(key, None)
        return super().compare_set(key, expected, desired)

    def add(self, key: str, amount: int) -> int:
        self.known.pop(key, None)
        return super().add(key, amount)

    def delete(self, key: str) -> bool:
        self.known.pop(key, None)
        return super().delete(key)


class RemembersMany(Remembers):
    def get(self, key: str) -> bytes | None:
        return Plain.get(self, key)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return [Remembers.get(self, key) for key in keys]


class RemembersAbsence(Remembers):
    def get(self, key: str) -> bytes | None:
        if key in self.known:
            return None
        found = Plain.get(self, key)
        if found is None:
            self.known[key] = None
        return found


class ComparesTheBeginning(Plain):
    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        found = self.get(key) or b""
        return super().compare_set(key, found if found[:64] == expected[:64] else expected, desired)


class ComparesWithoutCase(Plain):
    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        found = self.get(key) or b""
        return super().compare_set(key, found if found.lower() == expected.lower() else expected, desired)


class ComparesStripped(Plain):
    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        found = self.get(key) or b""
        return super().compare_set(key, found if found.strip() == expected.strip() else expected, desired)


class OtherKeys(Plain):
    def name(self, key: str) -> str:
        return key

    def get(self, key: str) -> bytes | None:
        return super().get(self.name(key))

    def set(self, key: str, value: bytes) -> None:
        super().set(self.name(key), value)

    def delete(self, key: str) -> bool:
        return super().delete(self.name(key))


class CutKeys(OtherKeys):
    def name(self, key: str) -> str:
        return key[:200]


class LowerKeys(OtherKeys):
    def name(self, key: str) -> str:
        return key.lower()


class EatsSlashes(OtherKeys):
    def name(self, key: str) -> str:
        return key.replace("//", "/").rstrip("/")


class AHundredAtOnce(Plain):
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return super().get_many(keys[:100]) + [None] * max(0, len(keys) - 100)


class NeedsAKey(Plain):
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        assert keys
        return super().get_many(keys)


class CountsIn32Bits(Plain):
    def add(self, key: str, amount: int) -> int:
        total = (super().add(key, amount) + 2**31) % 2**32 - 2**31
        self.set(key, str(total).encode())
        return total


class CountsTwice(Plain):
    def add(self, key: str, amount: int) -> int:
        if self.every(30):
            super().add(key, amount)
        return super().add(key, amount)


class CreatesByReading(Plain):
    def get(self, key: str) -> bytes | None:
        with self.lock:
            return self.values.setdefault(key, b"") or None


class TakesLittle(Plain):
    def set(self, key: str, value: bytes) -> None:
        if len(value) > 10_000:
            raise ValueError("too large")
        super().set(key, value)


class Closes(Plain):
    """A client whose end is the end of its clones, too."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.clones: list[Closes] = []
        self.closed = False

    def get(self, key: str) -> bytes | None:
        if self.closed:
            raise RuntimeError("closed")
        return super().get(key)

    def clone(self) -> Plain:
        copy = Closes(self.values, self.lock)
        self.clones.append(copy)
        return copy

    def close(self) -> None:
        self.closed = True
        for copy in self.clones:
            copy.close()


class OneConnection(Closes):
    def clone(self) -> Plain:
        return self


class Expires(Plain):
    """A server that evicts what was not touched for a while."""

    def get(self, key: str) -> bytes | None:
        if key.endswith("kept for a while"):
            return None
        return super().get(key)


BROKEN: dict[type[Plain], str] = {
    ComparesInTwoSteps: "exactly one succeeds",
    CreatesInTwoSteps: "create a key exactly one succeeds",
    ReplacesInTwoSteps: "replace one value by compare_set exactly one succeeds",
    AnswersAndForgets: "compare_set",
    LosesAWrite: "write",
    LosesADelete: "deleted key is absent",
    DeletesInTwoSteps: "delete a key exactly one",
    DeletesWhatIsBelow: "delete takes one key",
    Remembers: "seen by every",
    RemembersMany: "seen by every client that asks afterwards.*get_many",
    RemembersAbsence: "get|seen by every",
    ComparesTheBeginning: "whole values",
    ComparesWithoutCase: "whole values",
    ComparesStripped: "whole values",
    CutKeys: "different keys",
    LowerKeys: "different keys",
    EatsSlashes: "different keys",
    AHundredAtOnce: "every answered write is kept",
    NeedsAKey: "get_many of 0 keys",
    CountsIn32Bits: "32 bits",
    CountsTwice: "counter",
    CreatesByReading: "reading changes nothing",
    TakesLittle: "max_value_bytes",
    Closes: "leaves its clones connected",
    OneConnection: "leaves the others connected",
    Expires: "a key stays",
}


@pytest.mark.parametrize("store", BROKEN, ids=lambda store: store.__name__)
def test_a_store_that_breaks_a_rule_is_found_out_by_name(store: type[Plain]) -> None:
    with pytest.raises(AssertionError, match=f"the store breaks a rule: .*({BROKEN[store]})"):
        check_store(store())


def test_a_correct_store_passes_and_keeps_no_key() -> None:
    store = Plain()
    check_store(store)
    assert store.values == {}


class Waits(Plain):
    """A store whose reads wait for a key to appear."""

    patience = 0.05

    def get(self, key: str) -> bytes | None:
        found = super().get(key)
        if found is None:
            threading.Event().wait(self.patience)
        return found


class WaitsForEver(Waits):
    patience = 60.0


def test_a_store_that_waits_for_a_key_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.store_contract._ANSWER_SECONDS", 0.02)
    with pytest.raises(AssertionError, match="no operation waits for a key to appear"):
        check_store(Waits())


def test_a_store_that_never_answers_does_not_hold_the_check_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.watched_store.MAX_OPERATION_SECONDS", 0.2)
    with pytest.raises(AssertionError, match="no operation waits: get had no answer"):
        check_store(WaitsForEver())


class Refuses(Plain):
    def get(self, key: str) -> bytes | None:
        raise ConfigError("this server would forget")


def test_a_store_that_refuses_to_be_used_says_so_itself() -> None:
    with pytest.raises(ConfigError, match="would forget"):
        check_store(Refuses())
