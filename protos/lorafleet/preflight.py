"""The ordered checks of an adapter against an engine, before any byte is sent.

The order is part of the contract: the first message should be the one that explains the
others (a wrong shape explains a wrong base model's name).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet import key_checks, module_checks
from lorafleet.base_model import base_differs, only_local
from lorafleet.errors import AdapterRejected, BaseModelMismatch, InvalidAdapter
from lorafleet.quoting import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from lorafleet.keys import Keys
    from lorafleet.module_checks import Facts


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


def _base_model(facts: Facts) -> AdapterRejected | None:
    """Same shapes, other base: only the name can tell."""
    found, profile = facts.config.base_model_name_or_path, facts.profile
    if facts.allow_base_mismatch or not base_differs(found, profile) or only_local(found, profile):
        return None
    return BaseModelMismatch(
        f"adapter was trained for {shown(found)}, engine serves {shown(profile.base_model)} "
        "(set spec.allowBaseMismatch: true to load it)"
    )


KEY_CHECKS: tuple[Callable[[Keys], str | None], ...] = (
    key_checks.no_dora,
    key_checks.some_lora,
    key_checks.no_bias,
    key_checks.no_full_weights,
    key_checks.no_base_weights,
    key_checks.nothing_unknown,
)

MODULE_CHECKS: tuple[Callable[[Facts], AdapterRejected | None], ...] = (
    module_checks.layers_exist,
    module_checks.experts_exist,
    module_checks.modules_exist,
    module_checks.dtypes,
    module_checks.vocabulary,
    module_checks.shapes,
    module_checks.declared_ranks,
    module_checks.highest_rank,
    module_checks.shared_factors,
    _base_model,
)


def warnings(facts: Facts) -> tuple[str, ...]:
    """Return what people should know of an adapter that was accepted."""
    found, profile = facts.config.base_model_name_or_path, facts.profile
    lines = []
    if base_differs(found, profile):
        lines.append(
            f"adapter was trained for {shown(found)}, engine serves {shown(profile.base_model)}"
        )
    if not profile.modules:
        lines.append("the engine's modules are unknown: names and shapes were not checked")
    return tuple(lines)
