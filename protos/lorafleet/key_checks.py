"""Checks on tensor names alone: what a LoRA file must not hold.

Each returns why the file is refused, or None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet.factors import listed
from lorafleet.quoting import shown

if TYPE_CHECKING:
    from lorafleet.keys import Keys


def no_dora(keys: Keys) -> str | None:
    """Magnitude vectors, also when the config says that there is no DoRA."""
    return f"DoRA is not supported ({shown(keys.dora[0])})" if keys.dora else None


def some_lora(keys: Keys) -> str | None:
    """At least one LoRA tensor."""
    if keys.halves:
        return None
    others = [*keys.unknown, *keys.base_weights, *keys.full_weights]
    first = f" (first: {shown(others[0])})" if others else ""
    return f"no LoRA tensors in adapter_model.safetensors{first}"


def no_bias(keys: Keys) -> str | None:
    """Trained biases: no engine of ours applies them."""
    if not keys.biases:
        return None
    word = "lora_bias" if ".lora_B" in keys.biases[0] else "bias"
    return f"{word} is not supported ({shown(keys.biases[0])})"


def no_base_weights(keys: Keys) -> str | None:
    """Weights of the base model, as some trainers push them along."""
    found = keys.base_weights
    if not found:
        return None
    kinds = listed([shown(kind, 60) for kind in sorted(set(found))], 3)
    plural = "s" if len(found) > 1 else ""
    return f"base-model weights in the adapter ({kinds}): {len(found)} tensor{plural}"


def no_full_weights(keys: Keys) -> str | None:
    """Whole embeddings, which PEFT adds by itself after a resize of the vocabulary."""
    if not keys.full_weights:
        return None
    names = listed([shown(name, 60) for name in sorted(set(keys.full_weights))])
    return f"full weights for {names} are in the file; retrain with LoRA on them or merge"


def nothing_unknown(keys: Keys) -> str | None:
    """No tensor that is not understood."""
    return f"{shown(keys.unknown[0])} is not a LoRA tensor" if keys.unknown else None
