"""The stack machine that reads every pickle of a checkpoint (metadata, descriptions of tensors, objects) as data.

The C ``Unpickler`` with a stub ``find_class`` would be faster, but it hashes unchecked keys
(``tests/faults/test_checkpoint_bombs.py``). Here keys are checked first, and the number of containers is bounded.
"""

from __future__ import annotations

import pickle
import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from typing import Any

from holdfast.checkpoint.inert import DamagedPickleError, Inert, Keys, Name, Persistent, RefusedPickleError
from holdfast.checkpoint.pickle_runs import INSTANCE, MIN_CALL_BYTES, TENSOR, VALUES, SimpleValues

__all__ = ["read_pickle"]

MAX_CONTAINERS = 20_000_000
"""Maximum number of lists, tuples, dicts and records in one pickle; a million chunks take ten million."""
FREE_CONTAINERS = 100_000
MIN_CONTAINER_BYTES = 2
"""Minimum number of bytes per container beyond the free ones: a pickler creates it and stores it in the memo."""
MAX_MARKS = 100_000
"""Maximum number of containers open at one time; a pickler nests no deeper than Python's stack."""
COUNTED_BYTES = 64 << 10
"""Bytes to read before containers and marks are counted again: no byte creates more than one."""
MAX_INTEGER_BYTES = 4096
"""Largest integer: converting one to text takes quadratic time."""


def read_pickle(data: bytes, *, container_bytes: int = MIN_CONTAINER_BYTES) -> Any:
    """Read one pickle.

    Args:
        data: the pickle, and nothing after it.
        container_bytes: the minimum number of bytes per container, apart from some that are free.

    Raises:
        DamagedPickleError: it is damaged, uses an opcode no checkpoint needs, or is built to exhaust time or memory.
    """
    try:
        return _Machine(data).run(container_bytes)
    except DamagedPickleError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, AttributeError, struct.error) as error:
        raise DamagedPickleError(f"{type(error).__name__}: {error}") from error


_BINFLOAT = struct.Struct(">d")
_BININT = struct.Struct("<i")
_MEMOIZE, _NEWOBJ, _TUPLE1 = pickle.MEMOIZE[0], pickle.NEWOBJ[0], pickle.TUPLE1[0]
_SHORT_BINUNICODE, _LONG_BINGET, _BINGET = pickle.SHORT_BINUNICODE[0], pickle.LONG_BINGET[0], pickle.BINGET[0]
_BINPUT, _LONG_BINPUT = pickle.BINPUT[0], pickle.LONG_BINPUT[0]
_BININT1, _BININT2, _MARK = pickle.BININT1[0], pickle.BININT2[0], pickle.MARK[0]
_REDUCE, _EMPTY_TUPLE = pickle.REDUCE[0], pickle.EMPTY_TUPLE[0]
_SETITEMS, _BUILD = pickle.SETITEMS[0], pickle.BUILD[0]


class _Machine:
    """A stack machine for the opcodes of protocols 2 to 5; one instance per pickle."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: list[Any] = []
        self.containers = 0
        self.key = Keys().check
        self.protocol = 0
        self.stopped = False
        self.shared: set[int] = set()  # made by runs that are executed only once: nothing may change it
        self.simple = SimpleValues(self.memo, self.shared)
        self.runs: dict[bytes, tuple[list[Any], Any, int]] = {}

    def run(self, container_bytes: int) -> Any:
        """Run the whole pickle; containers are counted at intervals, not at each opcode."""
        position, size = 0, len(self.data)
        while position < size:
            position = self.run_part(position, min(position + COUNTED_BYTES, size))
            if self.containers > MAX_CONTAINERS or len(self.marks) > MAX_MARKS:
                raise RefusedPickleError(f"it holds more than {MAX_CONTAINERS} containers, or is nested too deep")
            if self.containers > FREE_CONTAINERS + position // container_bytes:
                raise RefusedPickleError(f"it holds {self.containers} containers in {position} bytes")
        if not self.stopped or position != size or self.marks or len(self.stack) != 1:
            raise DamagedPickleError("it does not end where its content ends")
        return self.stack[0]

    def run_tensor(self, start: int, end: int) -> None:
        """Run the description of a tensor, whose class is on the stack already, or reuse the result of an equal one.

        Args:
            start: the position of the opcode that took the class from the memo.
            end: where the description ends.
        """
        code = self.data[start:end]
        known = self.runs.get(code)
        if known is None:
            memo, containers = len(self.memo), self.containers
            class_end = start + (2 if code[0] == _BINGET else 5)
            self.run_part(class_end, end, within_tensor=True)
            made = self.memo[memo:]
            known = self.runs[code] = (made, self.stack[-1], self.containers - containers)
            self.shared.update(map(id, made))
            return
        made, self.stack[-1], containers = known
        self.memo += made
        self.containers += containers

    def run_part(self, position: int, size: int, *, within_tensor: bool = False) -> int:
        """Run the opcodes up to ``size``, and return where the last one ended.

        Frequent opcodes are handled inline, the others through a table: the metadata of 2,000 tensors on 64 ranks has
        nine million opcodes, and all ranks wait for this loop.
        """
        data, memo, marks, handlers, stack = self.data, self.memo, self.marks, _HANDLERS, self.stack
        from_bytes, tensor, instance, find_values = int.from_bytes, TENSOR.match, INSTANCE.match, VALUES.findall
        simple, shared = self.simple, self.shared
        containers = 0
        while position < size:
            opcode = data[position]
            start = position
            position += 1
            if opcode in (_LONG_BINGET, _BINGET):
                if opcode == _BINGET:
                    value = memo[data[position]]
                    position += 1
                else:
                    value = memo[from_bytes(data[position : position + 4], "little")]
                    position += 4
                stack.append(value)
                if type(value) is not Name:
                    continue
                if not within_tensor and (match := tensor(data, position)) is not None:
                    self.run_tensor(start, match.end())
                    position = match.end()
                elif (match := instance(data, position)) is not None:
                    stack[-1] = made = Inert(value, (), made=True)
                    state: dict[Any, Any] = {}
                    memo += (made, state)
                    content = []
                    for code in find_values(match[1]):
                        value = simple[code]
                        if len(code) >= MIN_CALL_BYTES:
                            memo += value
                            value = value[-1]
                        content.append(value)
                    self.set_items(state, content)
                    made.state = state
                    position = match.end()
                    containers += len(content)
                continue
            if opcode == _MEMOIZE:
                memo.append(stack[-1])
                continue
            if opcode in (_LONG_BINPUT, _BINPUT):  # in every object that torch saves, because it uses protocol 2
                width = 4 if opcode == _LONG_BINPUT else 1
                if from_bytes(data[position : position + width], "little") != len(memo):
                    raise DamagedPickleError(
                        f"a memo index other than the next one, {len(memo)}"
                    )  # no pickler skips an index
                memo.append(stack[-1])
                position += width
                continue
            if opcode == _SHORT_BINUNICODE:
                end = position + 1 + data[position]
                stack.append(data[position + 1 : end].decode("utf-8", "surrogatepass"))
                position = end
                continue
            if opcode == _BUILD:
                state = stack.pop()
                target = stack[-1]
                if type(target) is not Inert or target.state is not None or id(target) in shared:
                    raise DamagedPickleError(f"state set on a {type(target).__name__}, or twice")
                target.state = state
                continue
            if opcode == _SETITEMS:
                content = stack
                stack = self.stack = marks.pop()
                self.set_items(stack[-1], content)
                continue
            if opcode == _BININT1:
                stack.append(data[position])
                position += 1
                continue
            if opcode == _BININT2:
                stack.append(data[position] | data[position + 1] << 8)
                position += 2
                continue
            if opcode in (_NEWOBJ, _REDUCE):
                arguments = stack.pop()
                if type(arguments) is not tuple:
                    raise DamagedPickleError("a call whose arguments are not a tuple")
                stack[-1] = Inert(stack[-1], arguments, made=opcode == _NEWOBJ)
                containers += 1
                continue
            if opcode == _EMPTY_TUPLE:
                stack.append(())
                continue
            if opcode == _TUPLE1:
                stack[-1] = (stack[-1],)
                containers += 1
                continue
            if opcode == _MARK:
                marks.append(stack)
                stack = self.stack = []
                continue
            handler = handlers.get(opcode)
            if handler is None:
                raise DamagedPickleError(f"opcode {opcode:#04x} at byte {position - 1} is not used by checkpoints")
            self.position = position
            handler(self)
            position = self.position
            stack = self.stack
        self.containers += containers
        return position

    # Used by the handlers.

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        start = self.position
        self.position = start + count
        piece = self.data[start : start + count]
        if len(piece) != count:
            raise DamagedPickleError("it is truncated")
        return piece

    def number(self, width: int) -> int:
        """Return the next ``width`` bytes as a number."""
        return int.from_bytes(self.take(width), "little")

    def line(self) -> str:
        """Return the text up to the end of the line."""
        end = self.data.index(b"\n", self.position)
        text = self.data[self.position : end].decode()
        self.position = end + 1
        return text

    def since_mark(self) -> list[Any]:
        """Pop and return everything above the last mark."""
        values = self.stack
        self.stack = self.marks.pop()
        return values

    def push(self, container: Any) -> None:
        """Push a new container, and count it."""
        self.containers += 1
        self.stack.append(container)

    def set_items(self, target: Any, content: list[Any]) -> None:
        """Execute SETITEMS; keys and values alternate."""
        pairs = zip(content[::2], content[1::2], strict=True)
        if id(target) in self.shared:
            raise DamagedPickleError("items set on a completed object")
        if type(target) is dict:
            for key, value in pairs:
                target[key if type(key) is str else self.key(key)] = value
        elif type(target) is Inert:
            target.set(list(pairs))
        else:
            raise DamagedPickleError(f"items set on a {type(target).__name__}")

    def append(self, target: Any, values: list[Any]) -> None:
        """Execute APPEND."""
        if id(target) in self.shared:
            raise DamagedPickleError("values appended to a completed object")
        if type(target) is list or type(target) is Inert:
            target.extend(values)
        else:
            raise DamagedPickleError(f"values appended to a {type(target).__name__}")


def _protocol(machine: _Machine) -> None:
    machine.protocol = machine.number(1)
    if machine.protocol > pickle.HIGHEST_PROTOCOL:
        raise DamagedPickleError(f"unknown protocol {machine.protocol}")


def _frame(machine: _Machine) -> None:
    length = machine.number(8)
    if machine.position + length > len(machine.data):
        raise DamagedPickleError("it is truncated")


def _push_text(width: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(machine.take(machine.number(width)).decode("utf-8", "surrogatepass"))


def _push_bytes(width: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(machine.take(machine.number(width)))


def _push_old_string(width: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(machine.take(machine.number(width)).decode())


def _push_long(width: int) -> Callable[[_Machine], None]:
    def push(machine: _Machine) -> None:
        count = machine.number(width)
        if count > MAX_INTEGER_BYTES:
            raise RefusedPickleError(f"an integer of {count} bytes, the maximum is {MAX_INTEGER_BYTES}")
        machine.stack.append(int.from_bytes(machine.take(count), "little", signed=True))

    return push


def _tuple2(machine: _Machine) -> None:
    second, first = machine.stack.pop(), machine.stack.pop()
    machine.push((first, second))


def _tuple3(machine: _Machine) -> None:
    third, second, first = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    machine.push((first, second, third))


def _dict(machine: _Machine) -> None:
    content: dict[Any, Any] = {}
    machine.set_items(content, machine.since_mark())
    machine.push(content)


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.set_items(machine.stack[-1], [key, value])


def _append(machine: _Machine) -> None:
    value = machine.stack.pop()
    machine.append(machine.stack[-1], [value])


def _appends(machine: _Machine) -> None:
    values = machine.since_mark()
    machine.append(machine.stack[-1], values)


def _add_items(machine: _Machine) -> None:
    values = machine.since_mark()
    target = machine.stack[-1]
    if type(target) is not set:
        raise DamagedPickleError(f"values added to a {type(target).__name__}")
    for value in values:
        target.add(machine.key(value))


def _global(machine: _Machine) -> None:
    module, name = machine.line(), machine.line()
    if machine.protocol < 3:  # names are those of Python 2, as torch.save writes them
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    machine.push(Name(module, name))


def _stack_global(machine: _Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(module) is not str or type(name) is not str:
        raise DamagedPickleError("a global whose name is not text")
    machine.push(Name(module, name))


def _stop(machine: _Machine) -> None:
    machine.stopped = True
    if machine.position != len(machine.data):
        raise DamagedPickleError("it continues after its end")


def _pop(machine: _Machine) -> None:
    # A pickler pops objects that turn out to contain themselves, and calls made for a side effect, which has none here.
    if type(machine.stack.pop()) is Inert:
        raise RefusedPickleError("it refers to itself, or its state is set by a function")


def _extension(machine: _Machine) -> None:
    raise RefusedPickleError("a class from pickle's extension registry")


def _make_with_keywords(machine: _Machine) -> None:
    keywords, arguments, function = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    if keywords:
        raise DamagedPickleError("an instance created with keyword arguments")
    if type(arguments) is not tuple:
        raise DamagedPickleError("a call whose arguments are not a tuple")
    machine.push(Inert(function, arguments, made=True))


_HANDLERS: dict[int, Callable[[_Machine], None]] = {
    opcode[0]: handler
    for opcode, handler in (
        (pickle.PROTO, _protocol),
        (pickle.STOP, _stop),
        (pickle.FRAME, _frame),
        (pickle.NONE, lambda machine: machine.stack.append(None)),
        (pickle.NEWTRUE, lambda machine: machine.stack.append(True)),
        (pickle.NEWFALSE, lambda machine: machine.stack.append(False)),
        (pickle.BININT, lambda machine: machine.stack.append(_BININT.unpack(machine.take(4))[0])),
        (pickle.LONG1, _push_long(1)),
        (pickle.LONG4, _push_long(4)),
        (pickle.BINFLOAT, lambda machine: machine.stack.append(_BINFLOAT.unpack(machine.take(8))[0])),
        (pickle.BINUNICODE, _push_text(4)),
        (pickle.BINUNICODE8, _push_text(8)),
        (pickle.SHORT_BINSTRING, _push_old_string(1)),
        (pickle.BINSTRING, _push_old_string(4)),
        (pickle.SHORT_BINBYTES, _push_bytes(1)),
        (pickle.BINBYTES, _push_bytes(4)),
        (pickle.BINBYTES8, _push_bytes(8)),
        (pickle.BYTEARRAY8, lambda machine: machine.stack.append(bytearray(machine.take(machine.number(8))))),
        (pickle.POP, _pop),
        (pickle.POP_MARK, lambda machine: machine.since_mark() and None),
        (pickle.TUPLE2, _tuple2),
        (pickle.TUPLE3, _tuple3),
        (pickle.TUPLE, lambda machine: machine.push(tuple(machine.since_mark()))),
        (pickle.EMPTY_LIST, lambda machine: machine.push([])),
        (pickle.LIST, lambda machine: machine.push(machine.since_mark())),
        (pickle.APPEND, _append),
        (pickle.APPENDS, _appends),
        (pickle.EMPTY_DICT, lambda machine: machine.push({})),
        (pickle.DICT, _dict),
        (pickle.SETITEM, _set_item),
        (pickle.EMPTY_SET, lambda machine: machine.push(set())),
        (pickle.ADDITEMS, _add_items),
        (pickle.FROZENSET, lambda machine: machine.push(frozenset(map(machine.key, machine.since_mark())))),
        (pickle.GLOBAL, _global),
        (pickle.STACK_GLOBAL, _stack_global),
        (pickle.NEWOBJ_EX, _make_with_keywords),
        *((opcode, _extension) for opcode in (pickle.EXT1, pickle.EXT2, pickle.EXT4)),
        (pickle.BINPERSID, lambda machine: machine.push(Persistent(machine.stack.pop()))),
    )
}
