"""Stages PEFT adapters into an arena file the way the sidecar does, for tests of the plugin alone."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from typing import TYPE_CHECKING, Any

import torch
from lorafleet.fingerprint import to_text
from lorafleet_sidecar.fingerprints import tensor_fingerprint
from safetensors import safe_open

if TYPE_CHECKING:
    from pathlib import Path

_EXTENT = 2 * 1024 * 1024
_KEY = re.compile(
    r"base_model\.model\.(?P<module>.+?)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.weight)?$"
)
_EXPERT = re.compile(r"(?P<experts>.+\.experts)\.(?P<index>\d+)\.(?P<projection>\w+)$")


class ArenaBuilder:
    """An arena at `<volume>/arena` that grows by one extent with each adapter."""

    def __init__(self, volume: Path, size: int = 64 * 1024 * 1024) -> None:
        self.volume = volume
        self._next = 0
        (volume / "run").mkdir(parents=True, exist_ok=True)
        with (volume / "arena").open("wb") as file:
            file.truncate(size)

    def add(self, adapter: Path, dtype: torch.dtype = torch.bfloat16) -> str:
        """Stage the PEFT adapter in `adapter`; returns its digest ("sha256:..")."""
        config = json.loads((adapter / "adapter_config.json").read_text())
        modules = _read_modules(adapter / "adapter_model.safetensors", dtype)
        return self.add_modules(
            {
                name: (kind, a, b, _scalings(config, name, a))
                for name, (kind, a, b) in modules.items()
            },
            config,
        )

    def add_modules(
        self,
        modules: dict[str, tuple[str, torch.Tensor, torch.Tensor, list[float]]],
        config: dict[str, Any] | None = None,
    ) -> str:
        """Stage modules given as name -> (kind, packed A, packed B, scaling(s))."""
        names, entries, data = {}, {}, bytearray()
        for name, (kind, a, b, scaling) in sorted(modules.items()):
            places, proof = {}, {}
            for side, tensor in (("a", a), ("b", b)):
                places[side] = {"offset": len(data), "shape": list(tensor.shape)}
                packed = tensor.contiguous().view(torch.uint8).numpy().tobytes()
                dtype = str(tensor.dtype).removeprefix("torch.")
                scale = 1.0 if side == "a" else scaling[0] if len(scaling) == 1 else tuple(scaling)
                number = tensor_fingerprint(packed, tuple(tensor.shape), dtype, scale)
                proof[side] = to_text(number)
                names.update(_peft_entries(name, kind, side, tensor, len(data)))
                data += packed
            one = len(set(scaling)) == 1
            rank = a.shape[-2]
            entries[name] = {
                "kind": kind,
                "rank": rank,
                "scaling": scaling[0] if one else scaling,
                **places,
                "proof": proof,
            }
        header = json.dumps(names).encode()
        header += b" " * (-len(header) % 64 - 8 + 64)
        extent = len(header).to_bytes(8, "little") + header + data
        hex_digest = hashlib.sha256(bytes(data) + json.dumps(entries).encode()).hexdigest()
        offset = self._next
        self._next += -(-len(extent) // _EXTENT) * _EXTENT
        with (self.volume / "arena").open("r+b") as file:
            file.seek(offset)
            file.write(extent)
        directory = self.volume / "revisions" / hex_digest
        directory.mkdir(parents=True, exist_ok=True)
        revision = {
            "format": 1,
            "digest": f"sha256:{hex_digest}",
            "dtype": str(next(iter(modules.values()))[1].dtype).removeprefix("torch."),
            "arena": "arena",
            "extent_offset": offset,
            "extent_bytes": len(extent),
            "data_offset": offset + 8 + len(header),
            "rank": max(entry["rank"] for entry in entries.values()),
            "modules": entries,
        }
        (directory / "revision.json").write_text(json.dumps(revision))
        (directory / "adapter_config.json").write_text(json.dumps(config or {}))
        return f"sha256:{hex_digest}"

    def remove(self, digest: str) -> None:
        """Forget a revision's metadata and overwrite nothing."""
        shutil.rmtree(self.volume / "revisions" / digest.removeprefix("sha256:"))


def _read_modules(
    file: Path, dtype: torch.dtype
) -> dict[str, tuple[str, torch.Tensor, torch.Tensor]]:
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    kinds: dict[str, str] = {}
    with safe_open(str(file), framework="pt") as tensors:
        for key in tensors.keys():  # noqa: SIM118  # not a dict
            match = _KEY.match(key)
            assert match, key
            pairs.setdefault(match["module"], {})[match["side"]] = tensors.get_tensor(key).to(dtype)
            kinds[match["module"]] = "embedding" if match["embedding"] else "linear"
    found: dict[str, tuple[str, torch.Tensor, torch.Tensor]] = {}
    experts: dict[str, dict[int, dict[str, torch.Tensor]]] = {}
    for module, pair in pairs.items():
        match = _EXPERT.match(module)
        if match:
            name = f"{match['experts']}.{match['projection']}"
            experts.setdefault(name, {})[int(match["index"])] = pair
        else:
            found[module] = (kinds[module], pair["A"], pair["B"])
    for name, members in experts.items():
        ordered = [members[index] for index in range(len(members))]
        a, b = (torch.stack([pair[side] for pair in ordered]) for side in "AB")
        found[name] = ("experts", a, b)
    return found


def _scalings(config: dict[str, Any], name: str, a: torch.Tensor) -> list[float]:
    """Return the scaling of one module, or of each expert, by PEFT's rule."""
    experts, _, projection = name.rpartition(".")
    members = [name]
    if a.dim() == 3:
        members = [f"{experts}.{index}.{projection}" for index in range(a.shape[0])]
    found = []
    for member in members:
        rank = _pattern(config.get("rank_pattern") or {}, member, config["r"])
        alpha = _pattern(config.get("alpha_pattern") or {}, member, config["lora_alpha"])
        found.append(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))
    return found


def _pattern(patterns: dict[str, Any], name: str, default: Any) -> Any:
    for key, value in patterns.items():
        if re.match(rf"(.*\.)?({key})$", name):
            return value
    return default


def _peft_entries(
    name: str, kind: str, side: str, tensor: torch.Tensor, offset: int
) -> dict[str, Any]:
    dtype = {torch.bfloat16: "BF16", torch.float16: "F16"}[tensor.dtype]
    prefix, upper = "base_model.model.", side.upper()
    if kind == "experts":
        experts, _, projection = name.rpartition(".")
        one = tensor[0].numel() * tensor.element_size()
        return {
            f"{prefix}{experts}.{index}.{projection}.lora_{upper}.weight": {
                "dtype": dtype,
                "shape": list(tensor.shape[1:]),
                "data_offsets": [offset + index * one, offset + (index + 1) * one],
            }
            for index in range(tensor.shape[0])
        }
    suffix = f"lora_embedding_{upper}" if kind == "embedding" else f"lora_{upper}.weight"
    end = offset + tensor.numel() * tensor.element_size()
    return {
        f"{prefix}{name}.{suffix}": {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
    }
