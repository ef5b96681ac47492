"""The canonical adapter_config.json: plain LoRA whose alpha/rank is exactly the scaling.

rsLoRA becomes an ordinary alpha, for engines that apply it wrongly to experts; patterns are
written anew on canonical names, one key for all layers where they agree.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from lorafleet.profile import ModuleKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lorafleet.canonical import CanonicalModule

_Value = TypeVar("_Value", int, float)
_NUMBER = re.compile(r"(?<=\\\.)\d+(?=\\\.)")


def canonical_config(modules: Mapping[str, CanonicalModule], base_model: str) -> bytes:
    """Return adapter_config.json for the canonical image of `modules`."""
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    for name, module in modules.items():
        for key, scaling in _file_names(name, module):
            ranks[key] = module.rank
            alphas[key] = alpha_for(scaling, module.rank)
    rank, alpha = _most_common(ranks), _most_common(alphas)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "inference_mode": True,
        "base_model_name_or_path": base_model,
        "r": rank,
        "lora_alpha": _plain(alpha),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "target_modules": sorted({name.rpartition(".")[2] for name in modules}),
        "rank_pattern": _patterns(ranks, rank),
        "alpha_pattern": {key: _plain(v) for key, v in _patterns(alphas, alpha).items()},
    }
    return json.dumps(config, indent=2).encode()


def alpha_for(scaling: float, rank: int) -> float:
    """Return an alpha with `alpha / rank == scaling`, or the nearest if there is none."""
    alpha = scaling * rank
    near = (alpha, math.nextafter(alpha, math.inf), math.nextafter(alpha, -math.inf))
    return next((candidate for candidate in near if candidate / rank == scaling), alpha)


def _file_names(name: str, module: CanonicalModule) -> Iterator[tuple[str, float]]:
    """Yield a pattern (an escaped name) with its scaling; experts that agree share one."""
    if module.kind is not ModuleKind.EXPERTS:
        assert isinstance(module.scaling, float)
        yield re.escape(name), module.scaling
        return
    experts, _, projection = name.rpartition(".")
    head, tail = re.escape(experts) + r"\.", r"\." + re.escape(projection)
    if isinstance(module.scaling, float):
        yield head + r"\d+" + tail, module.scaling
    else:
        for expert, scaling in enumerate(module.scaling):
            yield f"{head}{expert}{tail}", scaling


def _patterns(values: Mapping[str, _Value], default: _Value) -> dict[str, _Value]:
    """Return anchored keys for all values but the default."""
    classes: dict[str, set[_Value]] = {}
    for key, value in values.items():
        classes.setdefault(_any_number(key), set()).add(value)
    found: dict[str, _Value] = {}
    for key, value in values.items():
        if value != default:
            shared = _any_number(key)
            found["^" + (shared if len(classes[shared]) == 1 else key)] = value
    return found


def _any_number(key: str) -> str:
    return _NUMBER.sub(lambda _: r"\d+", key)


def _most_common(values: Mapping[str, _Value]) -> _Value:
    counted = Counter(values.values())
    return max(counted, key=lambda value: (counted[value], value))


def _plain(value: float) -> float:
    return int(value) if value.is_integer() and abs(value) < 1e15 else value
