"""What one slot of a live tiny model computes, module by module, read from vLLM's own buffers.

Written against vLLM's layers alone: nothing here asks the plugin where it put a tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from staged_cases import Factors

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

PACKED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
EXPERTS = {  # projection: vLLM's buffers of it, and its place in them
    "gate_proj": ("w13", 0),
    "up_proj": ("w13", 1),
    "down_proj": ("w2", 0),
}


def slot_factors(slot: dict[str, torch.Tensor]) -> dict[str, Factors]:
    """Return the pair that each module of a slot holds, up to its last row of A that is not zero.

    `slot` is a `slot_probe.snapshot`. The slot's B is scaled already. Experts are
    named one by one; those of a layer whose adapter is switched off are left out.
    """
    return {name: _shrunk(a, b) for name, a, b in _pairs(slot)}


def _pairs(slot: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for wrapper in sorted({key.partition("/")[0] for key in slot}):
        if f"{wrapper}/adapter_enabled" in slot:
            if slot[f"{wrapper}/adapter_enabled"]:
                yield from _experts(slot, wrapper)
            continue
        parent, _, last = wrapper.rpartition(".")
        names = [f"{parent}.{part}" for part in PACKED.get(last, ())] or [wrapper]
        for index, name in enumerate(names):
            a = slot[f"{wrapper}/lora_a_stacked.{index}"]
            b = slot[f"{wrapper}/lora_b_stacked.{index}"]
            if last == "embed_tokens":  # looked up by rows: A lies transposed
                yield name, a.T, b.squeeze(0)
            else:
                yield "lm_head" if last == "logits_processor" else name, a.squeeze(0), b.squeeze(0)


def _experts(
    slot: dict[str, torch.Tensor], wrapper: str
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for projection, (buffer, place) in EXPERTS.items():
        a = slot[f"{wrapper}/{buffer}_lora_a_stacked.{place}"]
        b = slot[f"{wrapper}/{buffer}_lora_b_stacked.{place}"]
        for expert in range(len(a)):
            yield f"{wrapper}.{expert}.{projection}", a[expert], b[expert]


def _shrunk(a: torch.Tensor, b: torch.Tensor) -> Factors:
    used = a.any(dim=1).nonzero()
    rank = int(used[-1]) + 1 if len(used) else 0
    # Also what lies beyond the rank must change nothing: B's columns there meet rows of zeros.
    return Factors(None, a[:rank].double().numpy(), b[:, :rank].double().numpy())
