"""Experts or projections without LoRA become zeros: the engine packs all or none of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet.factors import Target, listed
from lorafleet.profile import ModuleKind

if TYPE_CHECKING:
    from lorafleet.places import Engine


def complete(targets: dict[str, Target], engine: Engine) -> list[str]:
    """Add targets for the missing projections of touched experts; say what will be zeros."""
    touched = [t.module for t in targets.values() if t.module.kind is ModuleKind.EXPERTS]
    layers = {_layer(module.name) for module in touched}
    lines: dict[str, list[str]] = {}
    for target in targets.values():
        experts = target.module.num_experts
        if 0 < len(target.parts) < experts:
            missing = [str(e) for e in range(experts) if e not in target.parts]
            lines.setdefault(f"zeros for experts {listed(missing)}", []).append(target.module.name)
    for module in engine.modules.values():
        if module.num_experts and module.name not in targets and _layer(module.name) in layers:
            targets[module.name] = Target(module)
            lines.setdefault("zeros for all experts", []).append(module.name)
    return [f"{what} of {listed(names, 3)}" for what, names in lines.items()]


def _layer(name: str) -> str:
    return name.rpartition(".")[0]
