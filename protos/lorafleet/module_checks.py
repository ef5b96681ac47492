"""Checks of assembled modules against the engine's profile.

Each returns the error that refuses the adapter, or None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lorafleet.dtypes import TORCH_NAMES
from lorafleet.errors import AdapterRejected, InvalidAdapter, RankTooHigh
from lorafleet.factors import expert_name
from lorafleet.profile import ModuleKind
from lorafleet.quoting import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lorafleet.assemble import Assembly
    from lorafleet.factors import Pair, Part, Target
    from lorafleet.peft_config import AdapterConfig
    from lorafleet.profile import EngineProfile

_TOWERS = frozenset(
    {"visual", "vision_tower", "vision_model", "vision_encoder", "audio_tower", "audio_encoder"}
    | {"multi_modal_projector", "mm_projector", "image_encoder", "vision_embed_tokens"}
    | {"vpm", "apm", "resampler", "speech_encoder", "embed_vision", "embed_audio", "connector"}
)
TOWER = "tower"
"""The one value of `drop_unmatched`: what is left out is a tower's."""
SHARED = "enable_moe_shared_loras"
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,9})\.")


@dataclass(frozen=True)
class Facts:
    """Everything the module checks look at."""

    assembly: Assembly
    config: AdapterConfig
    profile: EngineProfile
    allow_base_mismatch: bool = False

    def parts(self) -> Iterable[tuple[Target, int, Part]]:
        """Yield each target with its experts and their parts."""
        for target in self.assembly.targets.values():
            for expert, part in target.parts.items():
                yield target, expert, part


def layers_exist(facts: Facts) -> AdapterRejected | None:
    """Layers outside the engine: stock vLLM ignores them in silence."""
    layers = facts.profile.num_hidden_layers
    names = [pair.name for pair in facts.assembly.unplaced]
    if not facts.profile.modules:
        names = list(facts.assembly.targets)
    for name in names:
        layer = _LAYER.search(name)
        if layer and 0 < layers <= int(layer[1]) and _tower(name) is None:
            return InvalidAdapter(f"{shown(name)} is not in the engine ({layers} layers)")
    return None


def experts_exist(facts: Facts) -> AdapterRejected | None:
    """Expert numbers below the engine's number of experts."""
    for target in facts.assembly.targets.values():
        experts = target.module.num_experts
        if target.module.kind is ModuleKind.EXPERTS and target.parts:
            highest = max(target.parts)
            if highest >= experts:
                layer = target.module.name.rpartition(".")[0]
                return InvalidAdapter(
                    f"{shown(layer)}.{highest} is not in the engine ({experts} experts)"
                )
    return None


def modules_exist(facts: Facts) -> AdapterRejected | None:
    """Every module or none: an adapter that is applied in part is a wrong adapter."""
    unplaced = facts.assembly.unplaced
    if not unplaced:
        return None
    if facts.assembly.unclear:
        name, *meant = map(shown, facts.assembly.unclear)
        return InvalidAdapter(f"{name} may be {' or '.join(meant)}: the engine has both")
    towers = [pair.name for pair in unplaced if _tower(pair.name)]
    if towers and facts.assembly.placed:
        return InvalidAdapter(
            f"{shown(towers[0])} is not a LoRA module of the engine; the adapter was trained on "
            "the multimodal wrapper "
            f"(set spec.dropUnmatched: tower to drop {2 * len(towers)} tensors)"
        )
    nothing = "" if facts.assembly.placed else "no LoRA tensors match the engine: "
    total = facts.assembly.placed + len(unplaced)
    return InvalidAdapter(
        f"{nothing}{len(unplaced)} of {total} modules do not exist in the engine "
        f"(first: {shown(unplaced[0].name)})"
    )


def without_towers(pairs: list[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs that are of no vision or audio tower, and those that are of one."""
    rest = [pair for pair in pairs if _tower(pair.name) is None]
    return rest, [pair for pair in pairs if _tower(pair.name) is not None]


def dropped(towers: list[Pair]) -> list[str]:
    """Return the line about pairs that were left out, if there are any."""
    if not towers:
        return []
    names = sorted({name for pair in towers if (name := _tower(pair.name))})
    return [f"dropped {2 * len(towers)} tensors of {', '.join(names)}"]


def left_out(placed: int, towers: list[Pair]) -> str:
    """Return how much of the adapter is applied when a part is left out, "" for all of it."""
    total = placed + len(towers)
    return "".join(f"{placed} of {total} modules are applied; {line}" for line in dropped(towers))


def dtypes(facts: Facts) -> AdapterRejected | None:
    """Floating-point factors; a quantised tensor would be read as nonsense."""
    for _, _, part in facts.parts():
        a, b = part.a.entry.dtype, part.b.entry.dtype
        if a not in TORCH_NAMES or b not in TORCH_NAMES:
            side, found = ("lora_A", a) if a not in TORCH_NAMES else ("lora_B", b)
            return InvalidAdapter(
                f"{shown(part.source)}: {side} has dtype {found}, "
                f"expected one of {', '.join(TORCH_NAMES)}"
            )
    return None


def vocabulary(facts: Facts) -> AdapterRejected | None:
    """Extended vocabularies: vLLM removed the support, and no engine can grow."""
    for target, _, part in facts.parts():
        module, vocab = target.module, facts.profile.vocab_size
        if module.kind is ModuleKind.EXPERTS:
            continue
        if module.kind is ModuleKind.EMBEDDING:
            found, vocab = part.a.cols, vocab or module.in_features
        elif module.name.endswith("lm_head"):
            found, vocab = part.b.rows, vocab or module.out_features
        else:
            continue
        if found != vocab > 0 and found > vocab:
            return InvalidAdapter(
                f"{shown(module.name)} LoRA has {found} rows, the base vocabulary size ({vocab}) "
                "cannot be extended"
            )
    return None


def shapes(facts: Facts) -> AdapterRejected | None:
    """Exact shapes: stock vLLM accepts a narrower base and serves a wrong update."""
    for target, expert, part in facts.parts():
        module, a, b = target.module, part.a, part.b
        if a.cols == module.in_features and b.rows == module.out_features and b.cols == a.rows:
            continue
        side, window, wanted = "lora_A", a, [part.declared_rank, module.in_features]
        if a.cols == module.in_features:
            side, window, wanted = "lora_B", b, [module.out_features, a.rows]
        update = ""
        if b.cols == a.rows:
            update = (
                f" (the update is [{b.rows}, {a.cols}], "
                f"expected [{module.out_features}, {module.in_features}])"
            )
        return InvalidAdapter(
            f"{shown(expert_name(module, expert))}: {side} has shape [{window.rows}, {window.cols}], expected {wanted} "
            f"for base {shown(facts.profile.base_model)}{update}"
        )
    return None


def shared_factors(facts: Facts) -> AdapterRejected | None:
    """An engine that keeps one outer factor for all experts has no room for several."""
    if SHARED not in facts.profile.flags:
        return None
    for target in facts.assembly.targets.values():
        module, parts = target.module, target.parts.values()
        if module.kind is not ModuleKind.EXPERTS or not parts:
            continue
        down = module.name.endswith((".down_proj", ".w2"))
        outer = {part.b if down else part.a for part in parts}
        if len(outer) > 1 or len(parts) < module.num_experts:
            return InvalidAdapter(
                f"{shown(module.name)}: {'lora_B' if down else 'lora_A'} differs between experts, "
                f"but the engine runs with {SHARED}"
            )
    return None


def declared_ranks(facts: Facts) -> AdapterRejected | None:
    """A config that lies about the rank makes the scaling wrong in silence."""
    for _, _, part in facts.parts():
        if part.a.rows != part.declared_rank:
            return InvalidAdapter(
                f"adapter_config.json declares rank {part.declared_rank} but "
                f"{shown(part.source)}.lora_A has {part.a.rows} rows"
            )
    return None


def highest_rank(facts: Facts) -> AdapterRejected | None:
    """The highest rank of all tensors: `r` of the config alone says too little."""
    highest = max((part.a.rows for _, _, part in facts.parts()), default=0)
    allowed = facts.profile.max_lora_rank
    if 0 < allowed < highest:
        return RankTooHigh(f"LoRA rank {highest} is greater than max_lora_rank {allowed}")
    return None


def _tower(name: str) -> str | None:
    return next((segment for segment in name.split(".") if segment in _TOWERS), None)
