"""What `torch.save` writes for a dict of tensors, made of single opcodes, and changed by them."""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import TYPE_CHECKING

from fuzzing import mutate

if TYPE_CHECKING:
    from random import Random

_KINDS = {"FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "DoubleStorage": 8}
_OTHER = [b"0", b"1", b"2", b"(", b")", b"t", b"\x85", b"\x86", b"\x87", b"]", b"}", b"e", b"a"]
_OTHER += [b"s", b"u", b"R", b"b", b"Q", b"N", b"\x88", b"\x93", b"\x94", b"\x81", b"\x92", b"l"]
_OTHER += [b"q\x00", b"h\x00", b"h\x07", b"r\xff\xff\xff\x7f", b"j\xff\xff\xff\xff", b"K\xff"]
_OTHER += [
    b"J\xff\xff\xff\xff",
    b"\x8a\x09" + b"\xff" * 8 + b"\x7f",
    b"\x8b\xff\xff\xff\x7f",
    b"I1\n",
]
_OTHER += [
    b"L9999999999L\n",
    b"F1e999\n",
    b"S'\\x'\n",
    b"V\\ud800\n",
    b"X\xff\xff\xff\x7f",
    b"cos\nsystem\n",
]
_OTHER += [
    b"\x8d" + b"\xff" * 8,
    b"\x8c\x02\xff\xfe",
    b"B\xff\xff\xff\xff",
    b"\x95" + b"\xff" * 8,
    b".",
]
_OTHER += [
    b"ios\nsystem\n",
    b"ctorch\nSize\n",
    b"ctorch._utils\n_rebuild_parameter\n",
    b"P1\n",
    b"\x80\x05",
]


def _text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + len(raw).to_bytes(4, "little") + raw


def _number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def program(random: Random) -> tuple[list[bytes], dict[str, int]]:
    """Return the opcodes of a valid pickle, and the bytes of each storage it wants."""
    out, storages = [b"\x80\x02", b"}", b"("], {}
    for index in range(random.choice([1, 2, 4])):
        kind = random.choice(list(_KINDS))
        shape = random.choice([(4, 8), (8, 4), (2, 2, 2), (0, 4), (7,), ()])
        size = 1
        strides: list[int] = []
        for extent in reversed(shape):
            strides.insert(0, size)
            size *= extent
        if random.random() < 0.2:
            strides.reverse()  # a transposed view
        name, elements = f"layers.{index}.lora_A.weight", 64
        storages[str(index)] = elements * _KINDS[kind]
        out += [_text(name), b"ctorch._utils\n_rebuild_tensor_v2\n", b"(", b"(", _text("storage")]
        out += [f"ctorch\n{kind}\n".encode(), _text(str(index)), _text("cpu"), _number(elements)]
        out += [b"t", b"Q", _number(0), b"(", *map(_number, shape), b"t"]
        out += [b"(", *map(_number, strides), b"t", b"\x89"]
        out += [b"ccollections\nOrderedDict\n", b")", b"R", b"t", b"R"]
    return [*out, b"u", b"."], storages


def changed(random: Random, opcodes: list[bytes]) -> list[bytes]:
    """Change a few opcodes."""
    out = list(opcodes)
    for _ in range(random.choice([1, 1, 2, 4])):
        at, action = random.randrange(len(out)), random.randrange(7)
        if action == 0 and len(out) > 1:
            del out[at]
        elif action == 1:
            out[at] = random.choice(_OTHER)
        elif action == 2:
            out.insert(at, random.choice(_OTHER))
        elif action == 3:
            out[at:at] = out[at : at + random.randrange(1, 9)]
        elif action == 4:
            out[at] = _number(random.choice(mutate.NUMBERS[:-2]))
        elif action == 5:
            out[at] = out[random.randrange(len(out))]
        else:
            out[at:at] = [random.choice(_OTHER)] * random.choice([10, 1000, 20_000])
    return out


def archive(pickled: bytes, storages: dict[str, int]) -> bytes:
    """Return the zip that holds them as torch does."""
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as writer:
        for name, content in (("data.pkl", pickled), ("byteorder", b"little")):
            writer.writestr(zipfile.ZipInfo(f"archive/{name}"), content)
        for key, size in storages.items():
            writer.writestr(zipfile.ZipInfo(f"archive/data/{key}"), bytes(size))
    return into.getvalue()


def legacy(pickled: bytes, storages: dict[str, int]) -> bytes:
    """Return the file that torch wrote before 1.6: magic, version, machine, tensors, storages."""
    head = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True})
    parts = [pickle.dumps(value, protocol=2) for value in head]
    parts += [pickled, pickle.dumps(list(storages), protocol=2)]
    return b"".join(parts) + b"".join(bytes(8 + size) for size in storages.values())
