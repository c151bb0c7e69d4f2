"""The runs of opcodes that make up most of a checkpoint's metadata, each read in one step.

``holdfast.checkpoint.pickle_machine`` reads everything else opcode by opcode.
"""

from __future__ import annotations

import pickle
import re
from typing import Any

from holdfast.checkpoint.inert import DamagedPickleError, Inert

__all__ = ["INSTANCE", "MIN_CALL_BYTES", "TENSOR", "VALUES", "SimpleValues"]

# Metadata consists mostly of one run of opcodes, executed in one step: a new instance whose state is a dict of a few
# simple values: memo entries, integers, None, and calls with a tuple of one to three integers (``torch.Size``).
_NEW = pickle.EMPTY_TUPLE + pickle.NEWOBJ + pickle.MEMOIZE + pickle.EMPTY_DICT + pickle.MEMOIZE + pickle.MARK
_GET, _INTEGER = rb"(?:h.|j....)", rb"(?:K.|M..|J....)"
# TUPLE1 to 3, MEMOIZE, TUPLE1, MEMOIZE, REDUCE, MEMOIZE
_CALL = _GET + _INTEGER + rb"{1,3}[\x85-\x87]\x94\x85\x94R\x94"
_SIMPLE = b"|".join((_CALL, _GET, _INTEGER, rb"\x8a\x05.....", pickle.NONE))
INSTANCE = re.compile(re.escape(_NEW) + rb"((?:" + _SIMPLE + rb"){1,8})ub", re.DOTALL)  # SETITEMS, BUILD
VALUES = re.compile(_SIMPLE, re.DOTALL)
MIN_CALL_BYTES = 10
# Tensors of one shape and dtype are described by the same bytes, because repeated values come from the memo, so such a
# run of opcodes is executed once. It makes an instance whose fields are an instance with a tuple as its state
# (``TensorProperties``), sizes, and finally a list of instances that hold sizes (``ChunkStorageMetadata``).
_SIZE_CALL = _GET + rb"(?:\)|" + _INTEGER + rb"{1,3}[\x85-\x87]\x94|\(" + _INTEGER + rb"{4,}t\x94)\x85\x94R\x94"
_PROPERTIES = _GET + rb"\)\x81\x94\((?:" + _GET + rb"|[\x88\x89]){1,8}t\x94b"
_PART = _GET + re.escape(_NEW) + rb"(?:" + _GET + _SIZE_CALL + rb"){1,4}ub"
_PARTS = rb"\]\x94(?:" + _PART + rb"a|\((?:" + _PART + rb")+e)"
_FIELD = _GET + rb"(?:" + _PROPERTIES + rb"|" + _SIZE_CALL + rb")"
TENSOR = re.compile(re.escape(_NEW) + rb"(?:" + _FIELD + rb"){1,4}" + _GET + _PARTS + rb"ub", re.DOTALL)


class SimpleValues(dict[bytes, Any]):
    """Simple values by their opcodes; a memo entry is written once, so these never change."""

    def __init__(self, memo: list[Any], shared: set[int]) -> None:
        super().__init__({pickle.NONE: None})
        self._memo = memo
        self._shared = shared

    def __missing__(self, code: bytes) -> Any:
        self[code] = value = self._call(code) if len(code) >= MIN_CALL_BYTES else self._value(code)
        return value

    def _value(self, code: bytes) -> Any:
        if code[0] in (pickle.BINGET[0], pickle.LONG_BINGET[0]):
            return self._memo[int.from_bytes(code[1:], "little")]
        content = code[2:] if code[0] == pickle.LONG1[0] else code[1:]
        return int.from_bytes(content, "little", signed=code[0] in (pickle.LONG1[0], pickle.BININT[0]))

    def _call(self, code: bytes) -> tuple[Any, ...]:
        """Return the integers, the arguments and the call, which all go into the memo."""
        function, *numbers = (self._value(part) for part in VALUES.findall(code[:-6]))
        if len(numbers) != code[-6] - pickle.TUPLE1[0] + 1:
            raise DamagedPickleError("a call with the wrong number of arguments")
        integers = tuple(numbers)
        call = Inert(function, (integers,), made=False)
        self._shared.add(id(call))
        return integers, (integers,), call
