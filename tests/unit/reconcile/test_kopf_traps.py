"""What the framework must be told, held against its own registry and settings."""

from __future__ import annotations

import copy
from itertools import islice

import kopf
from kopf._core.intents.registries import get_default_registry
from lorafleet_operator import handlers
from lorafleet_operator.api import names


def _registered(kind: str) -> list[object]:
    registry = get_default_registry()
    return list(getattr(registry, kind)._handlers)


def test_no_task_and_no_finalizer_of_the_framework_is_on_any_object() -> None:
    assert _registered("_spawning") == []


def test_nothing_is_handled_by_differences_so_no_object_carries_a_copy_of_itself() -> None:
    assert _registered("_changing") == []


def test_nothing_is_indexed_by_the_framework_which_lets_all_wait_until_all_are() -> None:
    assert _registered("_indexing") == []
    watched = {handler.selector.any_name for handler in _registered("_watching")}  # type: ignore[attr-defined]
    ours = {"enginepools", "loraadapters", "adaptergrants"}
    assert watched == {"pods", "services", "endpointslices", *ours}


def test_what_handlers_share_is_one_for_all_objects() -> None:
    shared = handlers.Shared(settings=1)
    assert copy.copy(shared) is shared
    assert shared.settings == 1


def test_the_framework_only_watches_and_leaves_our_finalizer_alone() -> None:
    settings = kopf.OperatorSettings()
    handlers.configure(settings, pod_selector="app=vllm", namespaces=("a",))
    assert names.FINALIZER == "lorafleet.dev/unload"
    assert settings.persistence.finalizer != names.FINALIZER
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    assert settings.watching.label_selectors[handlers.PODS] == "app=vllm"
    body = kopf.Body({"metadata": {"annotations": {"a": "b"}}, "spec": {"large": "thing"}})
    assert settings.persistence.diffbase_storage.build(body=body) == {}


def test_the_framework_never_gives_a_watch_up_and_never_pauses_for_long() -> None:
    settings = kopf.OperatorSettings()
    handlers.configure(settings, pod_selector="", namespaces=())
    backoffs = settings.networking.error_backoffs
    for _ in range(2):  # each request begins anew
        pauses = list(islice(iter(backoffs), 10_000))  # type: ignore[arg-type]
        assert len(pauses) == 10_000
        assert pauses[0] < max(pauses) == 2.0
