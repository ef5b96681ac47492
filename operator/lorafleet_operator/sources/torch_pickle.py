"""Reads which tensors a `torch.save` pickle describes, without executing anything.

A pickle is a program for a stack machine. This one interprets the few opcodes that
`torch.save` writes for a dict of tensors, over plain values; the names of functions stay names.
A name that is not in the short list below ends it with `unsafe pickle`. The `pickle` module is
never asked to load anything.
"""

from __future__ import annotations

import io
import pickletools
from dataclasses import dataclass
from typing import Any

from lorafleet.errors import InvalidAdapter

from lorafleet_operator.sources.bounds import one_line

_DTYPES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
_STORAGES = {f"torch.{name}": dtype for name, dtype in _DTYPES.items()}
_TENSOR = "torch._utils._rebuild_tensor_v2"
_PARAMETER = "torch._utils._rebuild_parameter"
_DICT = "collections.OrderedDict"
_SIZE = "torch.Size"
_ALLOWED = {_TENSOR, _PARAMETER, _DICT, _SIZE, *_STORAGES}
_MAX_DIMENSIONS = 8
_MAX_EXTENT = 1 << 48


@dataclass(frozen=True)
class StoredTensor:
    """A view of a storage: offset and strides count elements."""

    storage: str
    """Key of the storage, the last part of its name in the archive."""
    storage_elements: int
    dtype: str
    """Name in safetensors."""
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Name:
    text: str


@dataclass(frozen=True)
class Storage:
    """What a pickle says of a storage."""

    key: str
    dtype: str
    elements: int


class _Mark:
    """The stack's bracket."""


_MARK = _Mark()


def stored_tensors(pickle: bytes, file_name: str) -> dict[str, StoredTensor]:
    """Return the tensors of a pickled flat dict, by name.

    Raises `InvalidAdapter`: `unsafe pickle: ..` for anything else than what `torch.save` writes
    for a dict of tensors, `.. is not a dict of tensors` for other values.
    """
    value, _ = read_pickle(io.BytesIO(pickle), file_name)
    return tensors_of(value, file_name)


def read_pickle(stream: io.BytesIO, file_name: str) -> tuple[Any, dict[str, Storage]]:
    """Return the value of the pickle at the stream's place, and the storages that it names.

    The stream is left behind the pickle. Raises `InvalidAdapter` as `stored_tensors` does.
    """
    machine = _Machine(file_name)
    try:
        return machine.run(stream), machine.storages
    except (IndexError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        kind = type(error).__name__
    raise InvalidAdapter(f"{file_name} has a malformed pickle ({kind})")


def tensors_of(value: Any, file_name: str) -> dict[str, StoredTensor]:
    """Return the value if it is a dict of tensors by name; raises `InvalidAdapter` if not."""
    if not isinstance(value, dict):
        raise InvalidAdapter(f"{file_name} is not a dict of tensors")
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, StoredTensor):
            raise InvalidAdapter(
                f"{file_name} is not a dict of tensors: {one_line(str(name))!r} is none"
                f" ({type(tensor).__name__})"
            )
    return value


class _Machine:
    """The stack machine: values are None, bool, int, str, tuple, list, dict and the types above."""

    def __init__(self, file_name: str) -> None:
        self._file = file_name
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}

    def run(self, pickle: io.BytesIO) -> Any:
        for opcode, argument, _ in pickletools.genops(pickle):
            if opcode.name == "STOP":
                return self._stack.pop()
            self._step(opcode.name, argument)
        raise ValueError("no STOP")

    def _step(self, opcode: str, argument: Any) -> None:
        stack = self._stack
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                stack.append(_MARK)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode])
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                stack.append(tuple(self._pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(opcode[-1])
                stack[-count:] = [tuple(stack[len(stack) - count :])]
            case "APPEND" | "APPENDS":
                items = [stack.pop()] if opcode == "APPEND" else self._pop_to_mark()
                _of(stack[-1], list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = (
                    [stack.pop(), stack.pop()][::-1] if opcode == "SETITEM" else self._pop_to_mark()
                )
                self._set_items(_of(stack[-1], dict), items)
            case "GLOBAL":
                stack.append(self._name(argument.replace(" ", ".", 1)))
            case "STACK_GLOBAL":
                name, module = _of(stack.pop(), str), _of(stack.pop(), str)
                stack.append(self._name(f"{module}.{name}"))
            case "BINPERSID":
                storage = _storage(stack.pop())
                if self.storages.setdefault(storage.key, storage) != storage:
                    raise ValueError("two storages of one key")
                stack.append(storage)
            case "REDUCE":
                arguments = _of(stack.pop(), tuple)
                stack.append(_call(_of(stack.pop(), _Name).text, arguments))
            case "BUILD":
                # State of an OrderedDict: `_metadata` of a state_dict. Nothing to keep.
                _of(stack.pop(), dict)
                _of(stack[-1], dict)
            case "INST":
                self._name(argument.replace(" ", ".", 1))
                raise InvalidAdapter(f"unsafe pickle: {self._file} uses {opcode}")
            case _:
                raise InvalidAdapter(f"unsafe pickle: {self._file} uses {opcode}")

    def _name(self, text: str) -> _Name:
        if text not in _ALLOWED:
            raise InvalidAdapter(f"unsafe pickle: {self._file} refers to {one_line(text)}")
        return _Name(text)

    def _pop_to_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("no MARK")
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _set_items(self, target: dict[Any, Any], items: list[Any]) -> None:
        if len(items) % 2:
            raise ValueError("odd number of items")
        for key, value in zip(items[::2], items[1::2], strict=True):
            name = _of(key, str)
            if name in target:
                raise InvalidAdapter(f"two tensors for {one_line(name)} in {self._file}")
            target[name] = value


def _call(name: str, arguments: tuple[Any, ...]) -> Any:
    match name:
        case _ if name == _TENSOR:
            return _tensor(*arguments[:4])
        case _ if name == _PARAMETER:
            return _of(arguments[0], StoredTensor)
        case _ if name == _DICT:
            if arguments not in ((), ([],)):
                raise ValueError("an OrderedDict with arguments")
            return {}
        case _ if name == _SIZE:
            return _extents(arguments[0])
        case _:
            raise ValueError("a storage type is no function")


def _storage(reference: Any) -> Storage:
    # The format from before 1.6 adds a view, which is None since torch has typed tensors.
    kind, storage_type, key, _location, elements, *view = _of(reference, tuple)
    if kind != "storage" or view not in ([], [None]):
        raise ValueError("not a storage")
    dtype = _STORAGES[_of(storage_type, _Name).text]
    return Storage(_of(key, str), dtype, _extent(elements))


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> StoredTensor:
    where = _of(storage, Storage)
    tensor = StoredTensor(
        storage=where.key,
        storage_elements=where.elements,
        dtype=where.dtype,
        offset=_extent(offset),
        shape=_extents(shape),
        strides=_extents(strides),
    )
    if len(tensor.shape) != len(tensor.strides):
        raise ValueError("as many strides as dimensions are wanted")
    return tensor


def _extents(value: Any) -> tuple[int, ...]:
    numbers = _of(value, tuple)
    if len(numbers) > _MAX_DIMENSIONS:
        raise ValueError("too many dimensions")
    return tuple(map(_extent, numbers))


def _extent(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MAX_EXTENT:
        raise ValueError("not an extent")
    return value


def _of(value: Any, wanted: type) -> Any:
    if type(value) is not wanted:
        raise TypeError(f"{type(value).__name__} where {wanted.__name__} is wanted")
    return value
