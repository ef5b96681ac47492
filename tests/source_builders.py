"""Small adapters as bytes, and a tree of files in memory, for the tests of sources."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lorafleet_operator.sources.bounds import SourceSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lorafleet_operator.sources.base import Blob, ResolvedAdapter

CONFIG = json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}).encode()
FAST = SourceSettings(allow_private_addresses=True, backoff_s=0.001, stall_timeout_s=60.0)


def safetensors(tensors: Mapping[str, tuple[str, list[int], bytes]]) -> bytes:
    """Return a file of name -> (dtype, shape, bytes)."""
    header: dict[str, Any] = {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def pattern(length: int, seed: int = 0) -> bytes:
    """Return bytes that differ from place to place, without a short period."""
    block = b"".join(hashlib.sha256(b"%d %d" % (seed, i)).digest() for i in range(2048))
    return (block * (length // len(block) + 1))[:length]


def adapter(elements: int = 4096, seed: int = 0) -> dict[str, bytes]:
    """Return the two files of an adapter with one pair; `elements` F32 in lora_A."""
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    return {
        "adapter_config.json": CONFIG,
        "adapter_model.safetensors": safetensors(
            {
                f"{prefix}.lora_A.weight": ("F32", [4, elements // 4], pattern(elements * 4, seed)),
                f"{prefix}.lora_B.weight": ("F32", [8, 4], pattern(128, seed + 1)),
            }
        ),
    }


def sharded(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the adapter with each tensor in a file of its own, and their index."""
    weights = files["adapter_model.safetensors"]
    data = data_of(weights)
    header = json.loads(weights[8 : len(weights) - len(data)])
    found, places = {"adapter_config.json": files["adapter_config.json"]}, {}
    for number, (name, entry) in enumerate(header.items(), 1):
        begin, end = entry["data_offsets"]
        places[name] = f"adapter_model-{number:05}-of-{len(header):05}.safetensors"
        tensor = (entry["dtype"], entry["shape"], data[begin:end])
        found[places[name]] = safetensors({name: tensor})
    index = {"metadata": {"total_size": len(data)}, "weight_map": places}
    return found | {"adapter_model.safetensors.index.json": json.dumps(index).encode()}


def artifact(files: Mapping[str, bytes], repository: str, tag: str) -> dict[str, bytes]:
    """Return what a registry serves of an artifact with these files: path -> content."""
    served, layers = {}, []
    for name, content in files.items():
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        served[f"/v2/{repository}/blobs/{digest}"] = content
        title = {"org.opencontainers.image.title": name}
        layers.append({"digest": digest, "size": len(content), "annotations": title})
    served[f"/v2/{repository}/manifests/{tag}"] = json.dumps({"layers": layers}).encode()
    return served


def data_of(safetensors_file: bytes) -> bytes:
    """Return the tensor data section of a file."""
    (length,) = struct.unpack_from("<Q", safetensors_file)
    return safetensors_file[8 + length :]


async def read_all(resolved: ResolvedAdapter, step: int = 1 << 20) -> bytes:
    """Return the whole data section, read in steps."""
    size = resolved.data_bytes
    parts = [await resolved.read(at, min(step, size - at)) for at in range(0, size, step)]
    return b"".join(parts)


async def read_tensors(resolved: ResolvedAdapter) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return name -> (dtype, shape, bytes) of all tensors."""
    header = json.loads(resolved.header_bytes)
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        content = bytes(await resolved.read(begin, end - begin))
        found[name] = (entry["dtype"], tuple(entry["shape"]), content)
    return found


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write the files into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@dataclass
class MemoryBlob:
    """A file in memory that counts what is read of it."""

    name: str
    content: bytes
    linked: bool = False
    reads: list[tuple[int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.content)

    @property
    def identity(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def revision(self) -> str:
        return self.identity[:8]

    async def read(self, offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= self.size, (offset, length, self.size)
        self.reads.append((offset, length))
        return self.content[offset : offset + length]


@dataclass
class MemoryTree:
    """Files in memory, opened as a source's are."""

    files: dict[str, bytes]
    uri: str = "memory://adapter"
    opened: dict[str, MemoryBlob] = field(default_factory=dict)

    async def open(self, name: str) -> Blob | None:
        if name not in self.files:
            return None
        self.opened[name] = MemoryBlob(name, self.files[name])
        return self.opened[name]
