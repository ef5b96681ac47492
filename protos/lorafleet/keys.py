"""A source's tensor names, read one by one: LoRA factors, and what does not belong there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lorafleet.errors import InvalidAdapter
from lorafleet.factors import Pair, listed
from lorafleet.quoting import shown
from lorafleet.rewrites.wrappers import described, without_wrappers

if TYPE_CHECKING:
    from lorafleet.header import SafetensorsHeader, TensorEntry

_SIDES = {"lora_A": 0, "lora_B": 1, "lora_embedding_A": 0, "lora_embedding_B": 1}
_COMMON = {"lora_A.weight": 0, "lora_B.weight": 1}
_EMBEDDINGS = frozenset({"embed_tokens", "lm_head", "wte", "word_embeddings", "embed_in"})
_SAVED = "modules_to_save"
_BASE = "base_layer"
_TRAINING_ONLY = frozenset({"lora_velora_embed", "lora_monteclora_sampler"})
"""What PEFT saves beside the factors and reads only while it trains."""


@dataclass
class Keys:
    """What the names say. `halves` maps a module to its A and B, either may be missing."""

    halves: dict[str, list[TensorEntry | None]] = field(default_factory=dict)
    embeddings: set[str] = field(default_factory=set)  # modules with lora_embedding_A/B
    adapters: Counter[str] = field(default_factory=Counter)  # segments after lora_A
    passed_over: Counter[str] = field(default_factory=Counter)  # adapters that were not picked
    removed: Counter[str] = field(default_factory=Counter)  # wrapper segments
    left_out: Counter[str] = field(default_factory=Counter)  # what only training uses
    bare: int = 0  # lora_A and lora_B without `.weight`
    dora: list[str] = field(default_factory=list)
    biases: list[str] = field(default_factory=list)
    base_weights: list[str] = field(default_factory=list)
    full_weights: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)

    def pairs(self) -> list[Pair]:
        """Return the complete pairs. Raises InvalidAdapter for half a pair."""
        found = []
        for name, (a, b) in self.halves.items():
            if a is None or b is None:
                have, lack = ("lora_B", "lora_A") if a is None else ("lora_A", "lora_B")
                raise InvalidAdapter(f"{shown(name)} has {have} but no {lack}")
            found.append(Pair(name, a, b))
        return found

    def normalized(self) -> list[str]:
        """Return one line for each rewrite of names."""
        return [
            *described(self.removed),
            *(
                f"lora_A.{shown(name, 40)}.weight -> lora_A.weight ({count} keys)"
                for name, count in sorted(self.adapters.items())
            ),
            *([f"lora_A -> lora_A.weight ({self.bare} keys)"] if self.bare else []),
            *(
                f"left out, only training uses it: {role} ({count} tensors)"
                for role, count in sorted(self.left_out.items())
            ),
        ]


def read_keys(header: SafetensorsHeader, adapter_name: str = "") -> Keys:
    """Sort the header's tensors by what their names say.

    `adapter_name` picks one adapter of a file that holds several. Raises InvalidAdapter when
    two tensors have the same role, or when several adapters are there and none is picked.
    """
    keys = Keys()
    halves = keys.halves
    for entry in header.tensors:
        name = without_wrappers(entry.name, keys.removed)
        at = name.rfind(".lora_")
        # The common forms first: an adapter may have tens of thousands of keys.
        tail = name[at + 1 :] if at > 0 else ""
        side = _COMMON.get(tail)
        if side is not None:
            module = name[:at]
            pair = halves.get(module)
            if pair is None:
                pair = halves[module] = [None, None]
            if pair[side] is not None:
                keys.twice.append(_role(module, side))
            pair[side] = entry
        else:
            _other(keys, name, name[: max(at, 0)], tail, entry, adapter_name)
    if len(keys.adapters) > 1:
        names = listed([shown(name, 40) for name in sorted(keys.adapters)])
        raise InvalidAdapter(f"more than one adapter in one file ({names})")
    if keys.passed_over and not keys.halves:
        names = listed([shown(name, 40) for name in sorted(keys.passed_over)])
        raise InvalidAdapter(f"no adapter {shown(adapter_name, 40)} in the file (it holds {names})")
    if keys.twice:
        raise InvalidAdapter(f"two tensors for {keys.twice[0]}")
    return keys


def _put(keys: Keys, module: str, side: int, entry: TensorEntry) -> None:
    halves = keys.halves.setdefault(module, [None, None])
    if halves[side] is not None:
        keys.twice.append(_role(module, side))
    halves[side] = entry


def _role(module: str, side: int) -> str:
    return f"{shown(module)} ({'lora_B' if side else 'lora_A'})"


def _other(
    keys: Keys, name: str, module: str, tail: str, entry: TensorEntry, adapter_name: str
) -> None:
    role, *rest = tail.split(".")
    if role in _SIDES and module and "bias" not in rest:
        bare = not rest or rest[-1] != "weight"
        if not bare:
            rest.pop()
        if len(rest) <= 1:
            if rest and adapter_name and rest[0] != adapter_name:
                keys.passed_over.update(rest)
                return
            keys.adapters.update(rest)
            if role.startswith("lora_embedding"):
                keys.embeddings.add(module)
            elif bare and not rest:
                keys.bare += 1
            _put(keys, module, _SIDES[role], entry)
            return
    segments = name.split(".")
    if role.startswith("lora_magnitude_vector"):
        keys.dora.append(name)
    elif role in _TRAINING_ONLY:
        keys.left_out[role] += 1
    elif _SAVED in segments[1:]:
        keys.full_weights.append(segments[segments.index(_SAVED, 1) - 1])
    elif not _EMBEDDINGS.isdisjoint(segments) and segments[-1] in ("weight", "bias"):
        keys.full_weights.append(next(s for s in segments if s in _EMBEDDINGS))
    elif role == "lora_B" or segments[-1] == "bias":
        keys.biases.append(name)
    elif _BASE in segments and not role:  # a quantised base has more than a weight
        keys.base_weights.append(".".join(segments[segments.index(_BASE) :]))
    elif segments[-1] == "weight" and not role and "lora_" not in name:
        keys.base_weights.append(".".join(segments[-2:]))
    else:
        keys.unknown.append(name)
