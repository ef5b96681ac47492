"""Modules of a profile as plain torch layers with zero weights, for PEFT itself to adapt.

What PEFT merges into zeros is the update and nothing else, in float64 and to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from lorafleet.profile import ModuleKind
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lorafleet.profile import LoraModule

FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


class Experts(nn.Module):
    """All experts of a layer as transformers 5 holds them: [experts, out, in]."""

    def __init__(self, experts: int, sizes: dict[str, tuple[int, int]], transposed: bool) -> None:
        super().__init__()
        # PEFT 0.18 took every parameter for [experts, in, out]; later ones ask this attribute.
        self.is_transposed = transposed
        (hidden, gate), (_, up) = sizes["gate_proj"], sizes["up_proj"]
        wide, out = sizes["down_proj"]
        self.gate_up_proj = nn.Parameter(torch.zeros(experts, gate + up, hidden).double())
        self.down_proj = nn.Parameter(torch.zeros(experts, out, wide).double())


def skeleton(
    modules: Iterable[LoraModule],
    *,
    fused: bool = False,
    flat: bool = False,
    transposed: bool = False,
) -> nn.Module:
    """Return a model with these modules; `fused` joins q, k, v and gate, up, also of experts.

    Experts are one layer each, or with `flat` the parameters of one module for all of them.
    """
    root = nn.Module()
    layers: dict[str, dict[str, LoraModule]] = {}
    for module in modules:
        parent, _, last = module.name.rpartition(".")
        layers.setdefault(parent, {})[last] = module
    for parent, named in layers.items():
        experts = [each for each in named.values() if each.kind is ModuleKind.EXPERTS]
        if experts and flat:
            sizes = {name: (m.in_features, m.out_features) for name, m in named.items()}
            _set(root, parent, Experts(experts[0].num_experts, sizes, transposed))
            continue
        for name, (wide, out, kind) in _shapes(named, fused).items():
            for at in range(experts[0].num_experts) if experts else ("",):
                layer = nn.Embedding(wide, out) if kind is ModuleKind.EMBEDDING else None
                layer = layer or nn.Linear(wide, out, bias=False)
                nn.init.zeros_(layer.weight)
                _set(root, ".".join(part for part in (parent, str(at), name) if part), layer)
    return root.double()


def merged(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return every update under canonical names, from a merged skeleton's weights [out, in]."""
    found: dict[str, torch.Tensor] = {}
    for name, weight in model.state_dict().items():
        module, _, last = name.rpartition(".")
        if last in ("gate_up_proj", "down_proj"):
            for expert, one in enumerate(weight):
                found |= _split(f"{module}.{expert}.{last}", one)
        else:
            embedding = isinstance(model.get_submodule(module), nn.Embedding)
            found |= _split(module, weight.T if embedding else weight)
    return found


def _shapes(named: dict[str, LoraModule], fused: bool) -> dict[str, tuple[int, int, ModuleKind]]:
    shapes = {n: (m.in_features, m.out_features, m.kind) for n, m in named.items()}
    for name, parts in FUSED.items():
        if fused and set(parts) <= set(shapes):
            taken = [shapes.pop(part) for part in parts]
            shapes[name] = (taken[0][0], sum(out for _, out, _ in taken), taken[0][2])
    return shapes


def _split(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    head, _, last = name.rpartition(".")
    parts = FUSED.get(last)
    if not parts:
        return {name: weight}
    # q has twice the rows of k and of v in the profiles of the tests.
    shares = (2, 1, 1) if len(parts) == 3 else (1, 1)
    rows = [weight.shape[0] * share // sum(shares) for share in shares]
    split = torch.split(weight, rows)
    return {f"{head}.{part}": each for part, each in zip(parts, split, strict=True)}


def _set(root: nn.Module, path: str, child: nn.Module) -> None:
    *parents, last = path.split(".")
    for name in parents:
        if not hasattr(root, name):
            root.add_module(name, nn.Module())
        root = root.get_submodule(name)
    root.add_module(last, child)


def exact(shape: Any, generator: torch.Generator) -> torch.Tensor:
    """Return random values that bfloat16 and float16 hold exactly."""
    return torch.randint(-255, 256, tuple(shape), generator=generator).double() / 64
