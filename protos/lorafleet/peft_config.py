"""adapter_config.json: PEFT's rules for rank and scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lorafleet.errors import InvalidAdapter
from lorafleet.pattern import Budget, Pattern
from lorafleet.pattern_syntax import PatternError
from lorafleet.pattern_table import PatternTable
from lorafleet.peft_refusals import refusal
from lorafleet.quoting import shown
from lorafleet.strict_json import StrictJsonError, load_object

MAX_CONFIG_BYTES = 1 << 20
MAX_RANK = 1 << 16


@dataclass(frozen=True)
class AdapterConfig:
    """The fields of adapter_config.json that decide what an adapter computes."""

    r: int
    lora_alpha: float
    use_rslora: bool = False
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    base_model_name_or_path: str = ""
    peft_version: str = ""
    target_modules: tuple[str, ...] | str = ()
    target_parameters: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: bytes, *, adapter: str) -> AdapterConfig:
        """Return the config from adapter_config.json's bytes.

        Raises InvalidAdapter for malformed text and for every PEFT feature whose mathematics
        no engine of ours applies (DoRA, bias, aLoRA, PiSSA, modules_to_save, ..).
        """
        try:
            raw = load_object(text, MAX_CONFIG_BYTES)
            refused = refusal(raw)
            if refused:
                raise InvalidAdapter(f"adapter {adapter}: {refused}")
            config = cls(
                r=_rank(raw, "r"),
                lora_alpha=_number(raw, "lora_alpha"),
                use_rslora=bool(raw.get("use_rslora")),
                rank_pattern={
                    key: _rank(raw["rank_pattern"], key) for key in _mapping(raw, "rank_pattern")
                },
                alpha_pattern={
                    key: _number(raw["alpha_pattern"], key)
                    for key in _mapping(raw, "alpha_pattern")
                },
                base_model_name_or_path=_string(raw, "base_model_name_or_path"),
                peft_version=_string(raw, "peft_version"),
                target_modules=_strings(raw, "target_modules"),
                target_parameters=tuple(_list(raw, "target_parameters")),
            )
            _ = config._patterns  # refuses what cannot be matched
        except StrictJsonError as bad:
            raise InvalidAdapter(f"adapter {adapter}: adapter_config.json {bad}") from None
        except InvalidAdapter as bad:
            if str(bad).startswith(f"adapter {adapter}: "):
                raise
            raise InvalidAdapter(f"adapter {adapter}: {bad}") from None
        return config

    def adapted_name(self, module: str) -> str:
        """Return the name that PEFT's patterns see: `module.weight` if that is a target parameter."""
        wrapped, tail = self._wrapped_weights, module
        while wrapped and tail:
            if tail in wrapped:
                return f"{module}.weight"
            tail = tail.partition(".")[2]
        return module

    @cached_property
    def _wrapped_weights(self) -> frozenset[str]:
        """The ends of names whose weight is a target parameter; a set, for there may be many."""
        found = (target.removesuffix(".weight") for target in self.target_parameters)
        return frozenset(found) - frozenset(self.target_parameters)

    def rank_for(self, module: str) -> int:
        """Return the rank PEFT gives `module` (a name without `base_model.model.`).

        Raises InvalidAdapter when the patterns are too costly for so many modules.
        """
        return int(self._first("rank_pattern", module, self.r)) if self.rank_pattern else self.r

    def alpha_for(self, module: str) -> float:
        """Return the alpha PEFT gives `module`; raises as `rank_for`."""
        if not self.alpha_pattern:
            return self.lora_alpha
        return self._first("alpha_pattern", module, self.lora_alpha)

    def scaling_for(self, module: str, rank: int) -> float:
        """Return alpha/rank, or alpha/sqrt(rank) with rsLoRA, with `module`'s own alpha."""
        alpha = self.alpha_for(module)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def _first(self, kind: str, module: str, otherwise: float) -> float:
        """Return the value of the first key in `kind` that matches, as PEFT does."""
        try:
            key = self._patterns[kind].first(module)
        except PatternError as bad:
            raise InvalidAdapter(f"adapter_config.json: {kind} {bad}") from None
        return otherwise if key is None else float(getattr(self, kind)[key])

    @cached_property
    def _patterns(self) -> dict[str, PatternTable]:
        budget, compiled, tables = Budget(), dict[str, Pattern](), {}
        for kind in ("rank_pattern", "alpha_pattern"):
            try:
                tables[kind] = PatternTable(getattr(self, kind), budget, compiled)
            except PatternError as bad:
                raise InvalidAdapter(f"adapter_config.json: {kind} {bad}") from None
        return tables


def _rank(raw: dict[str, Any], key: str) -> int:
    value = _required(raw, key)
    if type(value) is not int or not 0 < value <= MAX_RANK:
        raise StrictJsonError(
            f"has rank {_shown(value)} for {shown(key, 80)}, expected 1 to {MAX_RANK}"
        )
    return value


def _number(raw: dict[str, Any], key: str) -> float:
    value = _required(raw, key)
    # The comparison keeps out NaN too, and integers that no float can hold.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        raise StrictJsonError(f"has {_shown(value)} for {shown(key, 80)}, expected a finite number")
    return float(value)


def _required(raw: dict[str, Any], key: str) -> object:
    value: object = raw.get(key)
    if value is None:
        raise StrictJsonError(f"has no {shown(key, 80)}")
    return value


def _shown(value: object) -> str:
    return shown(str(value), 40) if isinstance(value, int | float) else type(value).__name__


def _mapping(raw: dict[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key) or {}
    if not isinstance(value, dict):
        raise StrictJsonError(f"has a {key} that is not an object")
    return value


def _string(raw: dict[str, Any], key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""


def _list(raw: dict[str, Any], key: str) -> list[str]:
    value = raw.get(key)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _strings(raw: dict[str, Any], key: str) -> tuple[str, ...] | str:
    value = raw.get(key)
    return value if isinstance(value, str) else tuple(_list(raw, key))
