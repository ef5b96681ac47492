"""The identity of a revision: a digest over what the engine will compute with."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet.canonical import CanonicalModule


def canonical_digest(
    dtype: str,
    modules: Mapping[str, CanonicalModule],
    tensor_hashes: Mapping[str, tuple[str, str]],
) -> str:
    """Return "sha256:<hex>" of the canonical content.

    `tensor_hashes` maps each module to the SHA-256 hex digests of its packed A and B bytes.
    Neither the source's order of tensors, nor its names, nor its dtype matter.
    """
    described: dict[str, Any] = {
        name: {
            "kind": module.kind.value,
            "rank": module.rank,
            "scaling": module.scaling,
            "a": [module.a.shape, tensor_hashes[name][0]],
            "b": [module.b.shape, tensor_hashes[name][1]],
        }
        for name, module in modules.items()
    }
    content = {"format": 1, "dtype": dtype, "modules": described}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
