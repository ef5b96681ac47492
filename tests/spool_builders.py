"""A spool of pushes on a folder, and pushes into it that end or break off."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING

from lorafleet_operator.push.incoming import Incoming
from lorafleet_operator.push.revision import PushedRevision, described
from lorafleet_operator.push.spool import Spool
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.pushed import PushedSource, hex_of

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = json.dumps(
    {
        "peft_type": "LORA",
        "base_model_name_or_path": "x",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj"],
    }
).encode()
REVISIONS = 2


def revision(tensors: tuple[bytes, ...]) -> PushedRevision:
    header, at = {}, 0
    for number, data in enumerate(tensors):
        end = at + len(data)
        header[f"t{number}"] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, end]}
        at = end
    digests = [hashlib.sha256(data).digest() for data in tensors]
    text = json.dumps(header).encode()
    return described(text, CONFIG, digests, adapter="t/a", settings=SourceSettings())


def spool(root: Path, limit: int = 1 << 20, namespace: int = 1 << 20) -> Spool:
    made = Spool(root, limit_bytes=limit, namespace_bytes=namespace, revisions=REVISIONS)
    made.look()
    return made


def push(
    there: Spool, key: str, tensors: tuple[bytes, ...], wanted: set[str], stop: int = 9999
) -> Incoming:
    """Push, or send `stop` tensors and half of the next and break off."""
    incoming = Incoming(there, key, revision(tensors))
    incoming.open(wanted)
    for count, index in enumerate(incoming.missing):
        data = tensors[index]
        half = len(data) // 2
        for at, piece in ((0, data[:half]), (half, data[half:])):
            if piece:
                incoming.write(index, at, piece)
            if count == stop:
                return incoming
    try:
        incoming.commit()
        there.settle(key, wanted | {f"{key}/{hex_of(revision(tensors).revision)}"})
    finally:
        end(there, key, incoming)
    return incoming


def end(there: Spool, key: str, incoming: Incoming) -> None:
    incoming.close()
    there.release(key)


def source(root: Path, key: str, name: str) -> PushedSource:
    namespace, adapter = key.split("/")
    return PushedSource(
        root=root, namespace=namespace, name=adapter, revision=name, on_read=lambda count: None
    )


def read(root: Path, key: str, name: str) -> bytes:
    async def all_of() -> bytes:
        content = await source(root, key, name).resolve()
        return bytes(await content.read(0, content.data_bytes))

    return asyncio.run(all_of())
