"""What the framework must be told, held against its own registry and settings."""

from __future__ import annotations

import kopf
from kopf._core.intents.registries import get_default_registry
from lorafleet_operator import handlers
from lorafleet_operator.api import names


def _registered(kind: str) -> list[object]:
    registry = get_default_registry()
    return list(getattr(registry, kind)._handlers)


def test_daemons_have_no_cancellation_timeout_so_that_a_finalizer_stays_until_the_unload_ends() -> (
    None
):
    daemons = _registered("_spawning")
    assert {daemon.id for daemon in daemons} == {"adapter_daemon", "pool_daemon"}  # type: ignore[attr-defined]
    assert [daemon.cancellation_timeout for daemon in daemons] == [None, None]  # type: ignore[attr-defined]
    assert all(daemon.requires_finalizer for daemon in daemons)  # type: ignore[attr-defined]


def test_nothing_is_handled_by_differences_so_no_object_carries_a_copy_of_itself() -> None:
    assert _registered("_changing") == []


def test_the_objects_that_are_indexed_are_those_that_wake() -> None:
    indexed = {handler.selector for handler in _registered("_indexing")}  # type: ignore[attr-defined]
    watched = {handler.selector for handler in _registered("_watching")}  # type: ignore[attr-defined]
    assert indexed == watched


def test_the_framework_is_set_up_for_our_finalizer_and_prefix() -> None:
    settings = kopf.OperatorSettings()
    handlers.configure(settings, pod_selector="app=vllm", namespaces=("a",))
    assert settings.persistence.finalizer == names.FINALIZER == "lorafleet.dev/unload"
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    assert settings.watching.label_selectors[handlers.PODS] == "app=vllm"
    assert settings.background.cancellation_polling == 2.0
