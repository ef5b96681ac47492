"""One revision to be pushed: a config and tensors, in the order that `save_pretrained` writes them."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lorafleet.dtypes import ITEM_BYTES
from lorafleet.errors import InvalidAdapter, SourceNotFound
from lorafleet.header import (
    SafetensorsHeader,
    TensorEntry,
    header_length,
    parse_header,
    render_header,
)
from lorafleet.push import names
from lorafleet.push.tensors import Bounce, FileTensor, GivenTensor, in_batches, size_of
from lorafleet.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from lorafleet.push.tensors import Tensor

WEIGHTS: Final = "adapter_model.safetensors"
CONFIG: Final = "adapter_config.json"
_MOST_THREADS: Final = 4
"""That hash beside the training."""


@dataclass(frozen=True)
class Content:
    """What the two files of an adapter's folder hold; `tensors` in the order of their offsets."""

    config: bytes
    header: bytes
    """The JSON, without its length prefix."""
    tensors: Sequence[Tensor]

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(map(size_of, self.tensors))

    def distinct(self) -> tuple[list[Tensor], list[int]]:
        """Return the tensors but for those that are an earlier one's memory, and each one's place there."""
        keys: list[Hashable] = [id(t) if t.same is None else t.same for t in self.tensors]
        once: dict[Hashable, Tensor] = {}
        for key, tensor in zip(keys, self.tensors, strict=True):
            once.setdefault(key, tensor)
        places = {key: place for place, key in enumerate(once)}
        return list(once.values()), [places[key] for key in keys]

    def digests(self) -> list[bytes]:
        """Return the SHA-256 of each tensor; those that share memory are read once.

        In a few threads; what is on a device is copied by this one, on its current streams.
        """
        tensors, places = self.distinct()
        made = [hashlib.sha256() for _ in tensors]

        def take(share: Iterable[tuple[int, Iterable[memoryview]]]) -> None:
            for index, pieces in share:
                for piece in pieces:
                    made[index].update(piece)

        here = [(index, each) for index, each in enumerate(tensors) if each.bounce is None]
        there = [(index, each) for index, each in enumerate(tensors) if each.bounce is not None]
        count = min(_MOST_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(lambda each: take([(each[0], each[1].pieces())]), here))
            for batch in in_batches(each for _, each in there):
                whole = [
                    (there[at][0], [piece for _, piece in pieces])
                    for at, pieces in groupby(batch, itemgetter(0))
                ]
                list(threads.map(take, (whole[turn::count] for turn in range(count))))
        return [made[place].digest() for place in places]


def from_folder(folder: Path) -> Content:
    """Return what a folder of `save_pretrained` holds. Raises SourceNotFound, InvalidAdapter."""
    try:
        config = (folder / CONFIG).read_bytes()
        with (folder / WEIGHTS).open("rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError as error:
        raise SourceNotFound(f"{error.filename} does not exist") from None
    except OSError as error:
        raise SourceNotFound(f"{error.filename}: {error.strerror}") from None
    except ValueError:
        raise InvalidAdapter(f"{folder / WEIGHTS} is empty") from None
    return _from_memory(whole, config, str(folder / WEIGHTS))


def from_bytes(weights: bytes | bytearray | memoryview, config: Any) -> Content:
    """Return what a safetensors file's bytes hold; `config` as `config_bytes` takes it."""
    return _from_memory(memoryview(weights).cast("B"), config_bytes(config), WEIGHTS)


def _from_memory(whole: memoryview, config: bytes, what: str) -> Content:
    end = 8 + header_length(bytes(whole[:8]), what)
    text = bytes(whole[8:end])
    header = parse_header(text, max(len(whole) - end, 0), what)
    data = whole[end:]
    return Content(
        config, text, [FileTensor(t.dtype, t.shape, data[t.begin : t.end]) for t in header.tensors]
    )


@uninterrupted()
def from_tensors(
    given: Mapping[str, Any],
    config: Any,
    *,
    adapter: str,
    wrap: Callable[[str, Any], Tensor] | None = None,
) -> Content:
    """Return the LoRA tensors of a state dict under the names that PEFT's files have.

    `adapter`: of PEFT's adapters in the state dict, the one to take. Raises InvalidAdapter.
    """
    bounce = Bounce()
    make = wrap or (lambda name, tensor: GivenTensor(name, tensor, bounce))
    named = [
        (plain, make(plain, tensor))
        for name, tensor in given.items()
        if (plain := names.plain(name, adapter)) is not None
    ]
    if not named:
        raise InvalidAdapter(
            f"none of {len(given)} tensors is a LoRA tensor of adapter {adapter}"
            + (f", the first is {next(iter(given))}" if given else "")
        )
    # As safetensors orders a file: wide types first, so that each lies aligned, then by name.
    named.sort(key=lambda each: (-ITEM_BYTES[each[1].dtype], each[1].dtype, each[0]))
    entries, at = [], 0
    for name, tensor in named:
        entries.append(TensorEntry(name, tensor.dtype, tensor.shape, at, at + size_of(tensor)))
        at = entries[-1].end
    twice = next((a.name for a, b in pairwise(entries) if a.name == b.name), "")
    if twice:
        raise InvalidAdapter(f"two tensors of the state dict are {twice}")
    text = render_header(SafetensorsHeader(tuple(entries), {"format": "pt"}, at))[8:]
    return Content(config_bytes(config), text, [tensor for _, tensor in named])


def config_bytes(config: Any) -> bytes:
    """Return adapter_config.json: of a PeftConfig, a dict, text, bytes, or a file's path."""
    if isinstance(config, bytes):
        return config
    if isinstance(config, Path):
        try:
            return config.read_bytes()
        except OSError as error:
            raise SourceNotFound(f"{config}: {error.strerror}") from None
    if isinstance(config, str):
        return config.encode()
    if config is None:
        raise InvalidAdapter("a state dict or bytes need config=, as adapter_config.json has it")
    found = dict(config if isinstance(config, dict) else config.to_dict())
    found["inference_mode"] = True
    # Sets have no order of their own: the same adapter is the same bytes.
    ordered = {
        key: sorted(value) if isinstance(value, (set, frozenset)) else value
        for key, value in found.items()
    }
    try:
        return json.dumps(ordered, indent=2, sort_keys=True, default=_plain_value).encode()
    except TypeError as error:
        raise InvalidAdapter(f"the adapter's config is no JSON: {error}") from None


def _plain_value(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return value.value if hasattr(value, "value") else str(value)
