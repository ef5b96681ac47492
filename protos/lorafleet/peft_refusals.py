"""PEFT features that change what an adapter computes and that no engine of ours applies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lorafleet.quoting import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PLAIN_INITS = frozenset({"gaussian", "eva", "orthogonal", "mica", "lora_ga", "true", "false"})
"""Values of init_lora_weights that only choose where training starts."""
_KNOWN_USES = frozenset({"use_rslora"})
"""Fields named use_.. that are not refused when they are on."""


def refusal(raw: Mapping[str, Any]) -> str:
    """Return why the config is refused, or "". Unknown fields of newer PEFT are accepted."""
    for check in _CHECKS:
        message = check(raw)
        if message:
            return message
    return ""


def _peft_type(raw: Mapping[str, Any]) -> str:
    found = raw.get("peft_type")
    if found is None or (isinstance(found, str) and found.upper() == "LORA"):
        return ""
    return f"peft_type {_text(found)} is not supported, expected LORA"


def _bias(raw: Mapping[str, Any]) -> str:
    found = raw.get("bias")
    return "" if found in (None, "none", False) else f"bias: {_text(found)} is not supported"


def _init(raw: Mapping[str, Any]) -> str:
    found = raw.get("init_lora_weights")
    if not isinstance(found, str) or found.lower() in _PLAIN_INITS:
        return ""
    return (
        f"init_lora_weights={_text(found)} changes the base weights; "
        "convert with path_initial_model_for_weight_conversion"
    )


def _modules_to_save(raw: Mapping[str, Any]) -> str:
    found = raw.get("modules_to_save")
    if not found:
        return ""
    names = found if isinstance(found, list) else [found]
    return f"modules_to_save [{shown(', '.join(map(_text, names)))}] is not supported"


def _unknown_use(raw: Mapping[str, Any]) -> str:
    """PEFT names a switch of the mathematics use_.., and what describes training otherwise."""
    for name, value in raw.items():
        if name.startswith("use_") and value and name not in _KNOWN_USES:
            return f"{shown(name, 80)} is not known and may change what the adapter computes"
    return ""


def _flag(name: str, words: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda raw: f"{words} is not supported" if raw.get(name) else ""


def _section(name: str, words: str) -> Callable[[Mapping[str, Any]], str]:
    """Return the check of a feature that an empty object switches on, with PEFT's defaults."""
    return lambda raw: f"{words} is not supported" if raw.get(name) not in (None, False) else ""


def _text(value: object) -> str:
    return shown(str(value) if isinstance(value, str | int | float) else type(value).__name__, 80)


# The order is that of the messages: the feature that explains most comes first.
_CHECKS: tuple[Callable[[Mapping[str, Any]], str], ...] = (
    _peft_type,
    _flag("use_dora", "DoRA"),
    _flag("alora_invocation_tokens", "aLoRA (alora_invocation_tokens)"),
    _flag("alora_invocation_string", "aLoRA (alora_invocation_string)"),
    _flag("lora_bias", "lora_bias"),
    _bias,
    _init,
    _modules_to_save,
    _flag("trainable_token_indices", "trainable_token_indices"),
    _flag("layer_replication", "layer_replication"),
    _section("use_bdlora", "block-diagonal LoRA (use_bdlora)"),
    _flag("use_qalora", "QALoRA (use_qalora)"),
    _section("kasa_config", "KaSA (kasa_config)"),
    _section("arrow_config", "Arrow routing (arrow_config)"),
    _unknown_use,
)
