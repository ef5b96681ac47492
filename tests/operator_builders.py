"""Adapters, pools and engines as a pass sees them, with good defaults."""

from __future__ import annotations

from typing import Any

from lorafleet.profile import EngineProfile
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.api.v1alpha1 import EnginePool, LoRAAdapter
from lorafleet_operator.cluster.reads import EnginePod
from lorafleet_operator.facts import Facts, Placed
from lorafleet_operator.world import EngineView, KnownAdapter

BASE = "tiny/qwen3-dense"
DIGEST = "sha256:" + "a" * 64
OLD = "sha256:" + "b" * 64
FINGERPRINT = "fp-1"


def adapter(name: str = "sql", status: dict[str, Any] | None = None, **spec: Any) -> LoRAAdapter:
    return LoRAAdapter.model_validate(
        {
            "metadata": {
                "namespace": "team-a",
                "name": name,
                "uid": f"uid-{name}",
                "generation": 1,
            },
            "spec": {
                "baseModel": BASE,
                "poolRef": {"name": "pool"},
                "source": {"http": {"url": "https://example.test/adapter"}},
                **spec,
            },
            "status": status or {},
        }
    )


def known(name: str, created: str = "2026-01-01T00:00:00Z", **spec: Any) -> KnownAdapter:
    return KnownAdapter.of(adapter(name, **spec), created)


def pool(**spec: Any) -> EnginePool:
    return EnginePool.model_validate(
        {
            "metadata": {"namespace": "team-a", "name": "pool", "uid": "uid-pool", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "vllm"}}, "baseModel": BASE, **spec},
        }
    )


def pod(name: str = "engine-0") -> EnginePod:
    return EnginePod("team-a", name, f"uid-{name}", "127.0.0.2", (("app", "vllm"),))


def loaded(digest: str = DIGEST, **fields: Any) -> pb.LoadedAdapter:
    values = {
        "adapter": "team-a/sql",
        "served_name": "team-a/sql",
        "loader": "direct",
        "tier": pb.TIER_GPU,
        "published": True,
        **fields,
    }
    return pb.LoadedAdapter(digest=digest, **values)


def staged(digest: str = DIGEST, fingerprint: str = FINGERPRINT) -> pb.StagedRevision:
    return pb.StagedRevision(digest=digest, fingerprint=fingerprint, size_bytes=1, rank=8)


def engine(name: str = "engine-0", *entries: Any, **changes: Any) -> EngineView:
    """An engine whose inventory holds `entries`; fields of the view or the inventory in `changes`."""
    view = {key: changes.pop(key) for key in ("problem", "member", "ill_for") if key in changes}
    inventory = pb.Inventory(
        pod_uid=f"uid-{name}",
        **{
            "engine_instance": "i1",
            "health": pb.ENGINE_HEALTH_READY,
            "max_loras": 2,
            "max_cpu_loras": 4,
            "max_lora_rank": 8,
            "arena": pb.ArenaUsage(limit_bytes=64 << 20, largest_free_bytes=64 << 20),
            **changes,
        },
    )
    for entry in entries:
        (inventory.loaded if isinstance(entry, pb.LoadedAdapter) else inventory.staged).append(
            entry
        )
    profile = EngineProfile(base_model=BASE, dtype="bfloat16", max_lora_rank=8)
    return EngineView(pod(name), inventory=inventory, profile=profile, **view)


def facts(*engines: EngineView, placed: Placed | None = None, **changes: Any) -> Facts:
    """A pass after its plan: all engines wanted, the content known."""
    names = tuple(view.pod.name for view in engines)
    values: dict[str, Any] = {
        "pool": pool(),
        "engines": list(engines),
        "fingerprint": FINGERPRINT,
        "origin": "https://example.test/adapter at etag",
        "placed": placed or Placed(pods=names, wanted=len(names)),
        **changes,
    }
    return Facts(values.pop("adapter", adapter()), "2026-01-01T00:00:00Z", **values)
