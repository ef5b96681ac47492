"""The ordered checks of an adapter against an engine, before any byte is sent.

Each check returns why the adapter is refused, or None. The order is part of the contract: the
first message should be the one that explains the others (a wrong shape explains a rank).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lorafleet.dtypes import TORCH_NAMES
from lorafleet.errors import AdapterRejected, BaseModelMismatch, InvalidAdapter, RankTooHigh
from lorafleet.factors import listed
from lorafleet.profile import ModuleKind
from lorafleet.quoting import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lorafleet.assemble import Assembly
    from lorafleet.factors import Part, Target
    from lorafleet.keys import Keys
    from lorafleet.peft_config import AdapterConfig
    from lorafleet.profile import EngineProfile

_TOWERS = frozenset(
    {"visual", "vision_tower", "vision_model", "vision_encoder", "audio_tower", "audio_encoder"}
    | {"multi_modal_projector", "mm_projector", "image_encoder"}
)
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


def check_keys(keys: Keys) -> None:
    """Refuse a file by its tensor names alone. Raises InvalidAdapter."""
    for check in KEY_CHECKS:
        message = check(keys)
        if message:
            raise InvalidAdapter(message)


def check_modules(facts: Facts) -> None:
    """Refuse an adapter that the engine can't apply whole. Raises the first check's error."""
    for check in MODULE_CHECKS:
        error = check(facts)
        if error is not None:
            raise error


def _no_dora(keys: Keys) -> str | None:
    return f"DoRA is not supported ({shown(keys.dora[0])})" if keys.dora else None


def _some_lora(keys: Keys) -> str | None:
    return None if keys.halves else "no LoRA tensors in adapter_model.safetensors"


def _no_bias(keys: Keys) -> str | None:
    if not keys.biases:
        return None
    word = "lora_bias" if ".lora_B" in keys.biases[0] else "bias"
    return f"{word} is not supported ({shown(keys.biases[0])})"


def _no_base_weights(keys: Keys) -> str | None:
    found = keys.base_weights
    if not found:
        return None
    kinds = listed([shown(kind, 60) for kind in sorted(set(found))], 3)
    plural = "s" if len(found) > 1 else ""
    return f"base-model weights in the adapter ({kinds}): {len(found)} tensor{plural}"


def _no_full_weights(keys: Keys) -> str | None:
    if not keys.full_weights:
        return None
    names = ", ".join(sorted(set(keys.full_weights)))
    return f"full weights for {names} are in the file; retrain with LoRA on them or merge"


def _nothing_unknown(keys: Keys) -> str | None:
    return f"{shown(keys.unknown[0])} is not a LoRA tensor" if keys.unknown else None


KEY_CHECKS: tuple[Callable[[Keys], str | None], ...] = (
    _no_dora,
    _some_lora,
    _no_bias,
    _no_full_weights,
    _no_base_weights,
    _nothing_unknown,
)


def _layers_exist(facts: Facts) -> AdapterRejected | None:
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


def _experts_exist(facts: Facts) -> AdapterRejected | None:
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


def _modules_exist(facts: Facts) -> AdapterRejected | None:
    """Every module or none: an adapter that is applied in part is a wrong adapter."""
    unplaced = facts.assembly.unplaced
    if not unplaced:
        return None
    towers = [pair.name for pair in unplaced if _tower(pair.name)]
    if towers and facts.assembly.placed:
        return InvalidAdapter(
            f"{shown(towers[0])} is not a LoRA module of the engine; the adapter was trained on "
            f"the multimodal wrapper ({2 * len(towers)} tensors of it have no place)"
        )
    first = shown(unplaced[0].name)
    if not facts.assembly.placed:
        return InvalidAdapter(f"no LoRA tensors match the engine (first: {first})")
    total = facts.assembly.placed + len(unplaced)
    return InvalidAdapter(
        f"{len(unplaced)} of {total} modules do not exist in the engine (first: {first})"
    )


def _dtypes(facts: Facts) -> AdapterRejected | None:
    for _, _, part in facts.parts():
        for side, window in (("lora_A", part.a), ("lora_B", part.b)):
            if window.entry.dtype not in TORCH_NAMES:
                return InvalidAdapter(
                    f"{shown(part.source)}: {side} has dtype {window.entry.dtype}, "
                    f"expected one of {', '.join(TORCH_NAMES)}"
                )
    return None


def _vocabulary(facts: Facts) -> AdapterRejected | None:
    """Extended vocabularies: vLLM removed the support, and no engine can grow."""
    for target, _, part in facts.parts():
        name, module = target.module.name, target.module
        vocab = facts.profile.vocab_size
        if module.kind is ModuleKind.EMBEDDING:
            found, vocab = part.a.cols, vocab or module.in_features
        elif name.endswith("lm_head"):
            found, vocab = part.b.rows, vocab or module.out_features
        else:
            continue
        if found != vocab > 0 and found > vocab:
            return InvalidAdapter(
                f"{shown(name)} LoRA has {found} rows, the base vocabulary size ({vocab}) "
                "cannot be extended"
            )
    return None


def _shapes(facts: Facts) -> AdapterRejected | None:
    """Exact shapes: stock vLLM accepts a narrower base and serves a wrong update."""
    for target, expert, part in facts.parts():
        module, a, b = target.module, part.a, part.b
        if (a.cols, b.rows, b.cols) == (module.in_features, module.out_features, a.rows):
            continue
        side, window, wanted = "lora_A", a, [a.rows, module.in_features]
        if a.cols == module.in_features:
            side, window, wanted = "lora_B", b, [module.out_features, a.rows]
        update = ""
        if b.cols == a.rows:
            update = (
                f" (the update is [{b.rows}, {a.cols}], "
                f"expected [{module.out_features}, {module.in_features}])"
            )
        name = module.name
        if module.kind is ModuleKind.EXPERTS:
            experts, _, projection = name.rpartition(".")
            name = f"{experts}.{expert}.{projection}"
        return InvalidAdapter(
            f"{shown(name)}: {side} has shape [{window.rows}, {window.cols}], expected {wanted} "
            f"for base {shown(facts.profile.base_model)}{update}"
        )
    return None


def _declared_ranks(facts: Facts) -> AdapterRejected | None:
    """A config that lies about the rank makes the scaling wrong in silence."""
    for _, _, part in facts.parts():
        if part.a.rows != part.declared_rank:
            return InvalidAdapter(
                f"adapter_config.json declares rank {part.declared_rank} but "
                f"{shown(part.source)}.lora_A has {part.a.rows} rows"
            )
    return None


def _highest_rank(facts: Facts) -> AdapterRejected | None:
    highest = max((part.a.rows for _, _, part in facts.parts()), default=0)
    allowed = facts.profile.max_lora_rank
    if 0 < allowed < highest:
        return RankTooHigh(f"LoRA rank {highest} is greater than max_lora_rank {allowed}")
    return None


def _base_model(facts: Facts) -> AdapterRejected | None:
    """Same shapes, other base: only the name can tell."""
    found, profile = facts.config.base_model_name_or_path, facts.profile
    if facts.allow_base_mismatch or not base_differs(found, profile) or _is_path(found):
        return None
    return BaseModelMismatch(
        f"adapter was trained for {shown(found)}, engine serves {shown(profile.base_model)} "
        "(set spec.allowBaseMismatch: true to load it)"
    )


MODULE_CHECKS: tuple[Callable[[Facts], AdapterRejected | None], ...] = (
    _layers_exist,
    _experts_exist,
    _modules_exist,
    _dtypes,
    _vocabulary,
    _shapes,
    _declared_ranks,
    _highest_rank,
    _base_model,
)


def base_differs(found: str, profile: EngineProfile) -> bool:
    """Return whether `found` names another base model than all names of the engine.

    Only the last path part counts, without case; an empty name differs from nothing.
    """
    names = [profile.base_model, *profile.base_model_aliases]
    return bool(found) and any(names) and _last_part(found) not in map(_last_part, names)


def _last_part(name: str) -> str:
    parts = [part for part in name.replace("\\", "/").split("/") if part]
    for part in parts:  # a Hugging Face cache path: models--org--name/snapshots/<commit>
        if part.startswith("models--"):
            return part.rpartition("--")[2].casefold()
    return parts[-1].casefold() if parts else ""


def _is_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~")) or "\\" in name


def _tower(name: str) -> str | None:
    return next((segment for segment in name.split(".") if segment in _TOWERS), None)


def warnings(facts: Facts) -> tuple[str, ...]:
    """Return what people should know of an adapter that was accepted."""
    found, profile = facts.config.base_model_name_or_path, facts.profile
    if base_differs(found, profile):
        return (
            f"adapter was trained for {shown(found)}, engine serves {shown(profile.base_model)}",
        )
    return ()
