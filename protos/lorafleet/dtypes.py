"""Element types: the safetensors names, their sizes, and the ones that LoRA tensors may have."""

from __future__ import annotations

ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "C64": 8,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}
"""Bytes of one element; types below one byte do not occur in adapters and are unknown here."""

TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
"""The types of LoRA factors, from the safetensors name to torch's."""

SAFETENSORS_NAMES = {torch: short for short, torch in TORCH_NAMES.items()}
"""The reverse of TORCH_NAMES."""


def common_dtype(found: set[str]) -> str:
    """Return the smallest canonical type that holds all `found` ones (safetensors names).

    The canonical image is never wider than float32: no engine computes LoRA in float64.
    """
    if len(found) == 1:
        only = next(iter(found))
        return "F32" if only == "F64" else only
    return "F32"
