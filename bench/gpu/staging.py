"""An arena with random adapters, written as the sidecar would, and the same bytes as PEFT folders.

One tensor at a time goes from the device that made it into the arena: nothing is held twice, since
the adapters are as large as the memory of small machines.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lorafleet_vllm.fingerprints import part_fingerprint
from shapes import SCALING, Module

if TYPE_CHECKING:
    from pathlib import Path

_ALIGNMENT = 2 << 20  # of extents, as the sidecar's allocator has it


@dataclass(frozen=True)
class Staged:
    """One staged adapter: its bytes are at data_offset .. data_offset + data_bytes of the arena."""

    digest: str
    data_offset: int
    data_bytes: int
    extent_offset: int
    extent_bytes: int


@dataclass(frozen=True)
class Extent:
    """Where an adapter will lie, and the safetensors header that names its tensors."""

    modules: list[Module]
    header: bytes
    offset: int

    @property
    def data_offset(self) -> int:
        return self.offset + len(self.header)

    @property
    def data_bytes(self) -> int:
        return sum(module.nbytes for module in self.modules)

    @property
    def end(self) -> int:
        return self.data_offset + self.data_bytes


class Staging:
    """The volume of one engine, with the arena file that a sidecar would have made."""

    def __init__(self, volume: Path, adapters: dict[str, list[Module]]) -> None:
        self.volume = volume
        self.staged: dict[str, Staged] = {}
        extents, end = {}, 0
        for name, modules in adapters.items():
            extents[name] = Extent(modules, _header(modules), end)
            end = -(-extents[name].end // _ALIGNMENT) * _ALIGNMENT
        (volume / "run").mkdir(parents=True, exist_ok=True)
        with (volume / "arena").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, end)
        self.size = end
        arena = torch.from_file(str(volume / "arena"), shared=True, size=end, dtype=torch.uint8)
        for name, extent in extents.items():
            self.staged[name] = self._fill(arena, extent)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _fill(self, arena: torch.Tensor, extent: Extent) -> Staged:
        raw = torch.frombuffer(bytearray(extent.header), dtype=torch.uint8)
        arena[extent.offset : extent.data_offset] = raw
        entries, position = {}, 0
        for module in extent.modules:
            entry: dict[str, Any] = {"kind": module.kind, "rank": module.rank, "scaling": SCALING}
            proof = {}
            for side, shape in (("a", module.a), ("b", module.b)):
                tensor = random_values(shape)
                entry[side] = {"offset": position, "shape": list(shape)}
                proof[side] = _proof(tensor, 1.0 if side == "a" else SCALING)
                start = extent.data_offset + position
                target = arena[start : start + tensor.nbytes]
                target.view(torch.bfloat16).view(shape).copy_(tensor)
                position += tensor.nbytes
            entries[module.name] = {**entry, "proof": proof}
        return self._describe(extent, entries)

    def _describe(self, extent: Extent, entries: dict[str, Any]) -> Staged:
        hex_digest = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
        nbytes = extent.end - extent.offset
        revision = {
            "format": 1,
            "digest": f"sha256:{hex_digest}",
            "dtype": "bfloat16",
            "arena": "arena",
            "extent_offset": extent.offset,
            "extent_bytes": nbytes,
            "data_offset": extent.data_offset,
            "rank": max(module.rank for module in extent.modules),
            "modules": entries,
        }
        directory = self.volume / "revisions" / hex_digest
        directory.mkdir(parents=True)
        (directory / "revision.json").write_text(json.dumps(revision))
        (directory / "adapter_config.json").write_text(json.dumps(peft_config(extent.modules)))
        found = (extent.data_offset, extent.data_bytes, extent.offset, nbytes)
        return Staged(revision["digest"], *found)

    def write_peft(self, name: str, folder: Path) -> Path:
        """Write the adapter as an ordinary PEFT folder: the extent is a safetensors file as it is."""
        staged = self.staged[name]
        folder.mkdir(parents=True)
        with (
            (self.volume / "arena").open("rb") as source,
            (folder / "adapter_model.safetensors").open("wb") as target,
        ):
            position, left = staged.extent_offset, staged.extent_bytes
            while left:
                sent = os.sendfile(target.fileno(), source.fileno(), position, min(left, 1 << 30))
                position, left = position + sent, left - sent
        directory = self.volume / "revisions" / staged.digest.removeprefix("sha256:")
        shutil.copy(directory / "adapter_config.json", folder)
        return folder


def peft_config(modules: list[Module]) -> dict[str, Any]:
    rank = max(module.rank for module in modules)
    return {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": int(rank * SCALING),
        "target_modules": sorted({module.name.rpartition(".")[2] for module in modules}),
        "bias": "none",
    }


def _header(modules: list[Module]) -> bytes:
    """Return the safetensors header of `modules`' tensors, in their order, length and all."""
    names, position = {}, 0
    for module in modules:
        for side, shape in (("A", module.a), ("B", module.b)):
            for name, one in peft_names(module, side, shape):
                nbytes = 2 * one[0] * one[1]
                names[name] = {
                    "dtype": "BF16",
                    "shape": list(one),
                    "data_offsets": [position, position + nbytes],
                }
                position += nbytes
    text = json.dumps(names).encode()
    text += b" " * (-(len(text) + 8) % 64)
    return len(text).to_bytes(8, "little") + text


def peft_names(
    module: Module, side: str, shape: tuple[int, ...]
) -> list[tuple[str, tuple[int, ...]]]:
    prefix = "base_model.model."
    if module.kind == "linear":
        return [(f"{prefix}{module.name}.lora_{side}.weight", shape)]
    experts, _, projection = module.name.rpartition(".")
    return [
        (f"{prefix}{experts}.{index}.{projection}.lora_{side}.weight", shape[1:])
        for index in range(shape[0])
    ]


def random_values(shape: tuple[int, ...]) -> torch.Tensor:
    """Return small values: decoding with them must stay finite."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.randn(shape, device=device, dtype=torch.bfloat16).mul_(0.02)


def _proof(tensor: torch.Tensor, scale: float) -> str:
    scaled = tensor if scale == 1.0 else tensor * scale
    values = scaled if scaled.dim() == 3 else scaled[None]
    number = int(part_fingerprint(values, (0, 0, 0), values.shape[1])) % 2**64
    return f"{number:016x}"
