"""What lies in one slot of every LoRA layer of a live engine."""

from __future__ import annotations

from typing import Any

import torch


def stacked(layer: Any) -> dict[str, torch.Tensor]:
    """Return every buffer of `layer` whose first dimension is the slot."""
    found: dict[str, torch.Tensor] = {}
    names = ["lora_a_stacked", "lora_b_stacked"]
    if hasattr(layer, "w13_lora_a_stacked"):
        names = [f"{part}_lora_{side}_stacked" for part in ("w13", "w2") for side in "ab"]
        found["adapter_enabled"] = layer.adapter_enabled
    for name in names:
        value = getattr(layer, name)
        for index, tensor in enumerate([value] if isinstance(value, torch.Tensor) else value):
            found[f"{name}.{index}"] = tensor
    return found


def snapshot(manager: Any, index: int) -> dict[str, torch.Tensor]:
    """Return a copy of slot `index`: `<wrapper>/<buffer>` -> tensor."""
    return {
        f"{wrapper}/{name}": tensor[index].clone().cpu()
        for wrapper, layer in manager.modules.items()
        for name, tensor in stacked(layer).items()
    }


def soil(manager: Any, index: int) -> None:
    """Fill slot `index` with what no adapter holds, to see what a load leaves behind."""
    for layer in manager.modules.values():
        for tensor in stacked(layer).values():
            tensor[index].fill_(7)
    residency = getattr(manager, "lorafleet", None)
    if residency is not None:
        residency.fills.give_way()  # not the plugin's own write


def differing(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> list[str]:
    """Return the buffers whose bits differ."""
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(left[name], right[name])]
