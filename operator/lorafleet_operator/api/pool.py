"""EnginePool: which pods are engines, and what the operator sees of them."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator

from . import names, rules
from .fields import (
    BaseModelName,
    Conditions,
    Int32,
    Int64,
    Message,
    ShortMessage,
    quantity_field,
)
from .lifecycle import EngineTraffic, RecycleRule, Recycling, SafePoint, WarmSet
from .meta import ApiModel, ObjectMeta
from .quantity import to_bytes
from .routing import PoolRouting, RoutingStatus
from .rules import validations
from .tenants import Tenant, TenantUsage, tenants_field


class EngineSelector(ApiModel):
    """Which pods are engines of the pool."""

    match_labels: dict[
        Annotated[str, Field(max_length=317)], Annotated[str, Field(max_length=63)]
    ] = Field(
        max_length=32,
        json_schema_extra=validations(rules.SELECTOR_NOT_EMPTY),
    )
    """Labels that all engine pods carry, with their values."""


class TransferLimits(ApiModel):
    """How fast the operator sends adapters to the pool's engines; what engines send each other and
    what they have already is not counted."""

    max_bytes_per_second: str | int | None = quantity_field()
    """Most bytes a second for all adapters of the pool; no limit if left out."""
    max_bytes_per_second_per_namespace: str | int | None = quantity_field()
    """Most bytes a second for the adapters of one namespace; no limit if left out."""

    @property
    def pool_rate(self) -> int | None:
        """Return the pool's bytes a second, None for no limit."""
        return None if self.max_bytes_per_second is None else to_bytes(self.max_bytes_per_second)

    @property
    def namespace_rate(self) -> int | None:
        """Return each namespace's bytes a second, None for no limit."""
        rate = self.max_bytes_per_second_per_namespace
        return None if rate is None else to_bytes(rate)

    @field_validator("max_bytes_per_second", "max_bytes_per_second_per_namespace")
    @classmethod
    def _is_quantity(cls, rate: str | int | None) -> str | int | None:
        if rate is not None:
            to_bytes(rate)
        return rate


class EnginePoolSpec(ApiModel):
    """Which pods are engines, and how to reach and bound them."""

    selector: EngineSelector
    """Which pods of this namespace are engines of the pool."""
    base_model: BaseModelName
    """Name of the base model that the engines serve."""
    sidecar_port: Int32 = Field(default=7070, ge=1, le=65535)
    """Port of the sidecar's gRPC service in each engine pod."""
    engine_port: Int32 = Field(default=8000, ge=1, le=65535)
    """Port of vLLM's HTTP server in each engine pod; Services lead there."""
    host_memory_budget: str | int | None = quantity_field()
    """Most arena bytes that placement uses on one engine; its whole arena if left out."""
    max_adapters_per_engine: Int32 | None = Field(default=None, ge=1, le=100_000)
    """Most adapters that placement puts on one engine; as many as its arena holds if left out."""
    transfer: TransferLimits | None = None
    """Limits on what is sent to the engines; none if left out."""
    routing: PoolRouting = Field(default_factory=PoolRouting, json_schema_extra={"default": {}})
    """Objects that lead requests to the pool's engines; none by default."""
    tenants: list[Tenant] = tenants_field()
    """Limits and guarantees of tenants; a namespace of none has neither."""
    warm: WarmSet = Field(default_factory=WarmSet, json_schema_extra={"default": {}})
    """What an engine has to serve before its pod counts as ready, if the pod has the gate."""
    recycle: RecycleRule | None = None
    """When an engine's vLLM is started again to free host memory; never if left out."""

    @field_validator("host_memory_budget")
    @classmethod
    def _is_quantity(cls, budget: str | int | None) -> str | int | None:
        if budget is not None:
            to_bytes(budget)
        return budget

    @property
    def host_memory_budget_bytes(self) -> int | None:
        """Return the budget in bytes, None for the whole arena."""
        return None if self.host_memory_budget is None else to_bytes(self.host_memory_budget)


class EngineHealth(StrEnum):
    """What an engine's sidecar says of it; the names of the wire without their prefix."""

    UNREACHABLE = "Unreachable"  # the sidecar does not answer
    STARTING = "Starting"  # vLLM does not answer yet
    READY = "Ready"  # plugin live
    STOCK = "Stock"  # serving, plugin not live: vLLM's own load path
    REFUSED = "Refused"  # cannot take adapters; the message says why


class PoolEngine(ApiModel):
    """One engine of the pool."""

    pod_name: str = Field(max_length=253)
    """Name of the engine's pod."""
    engine: str = Field(default="", max_length=64)
    """The engine's instance: changes with every start of its vLLM."""
    health: EngineHealth = EngineHealth.UNREACHABLE
    """Unreachable, Starting, Ready, Stock or Refused."""
    message: ShortMessage = ""
    """Why the engine is not Ready, or takes no traffic."""
    base_model: str = Field(default="", max_length=100)
    """Base model that the engine serves, its first hundred characters; empty while nobody knows."""
    node: str = Field(default="", max_length=63)
    """Node of the pod, its first 63 characters."""
    zone: str = Field(default="", max_length=63)
    """Zone that the pod's label topology.kubernetes.io/zone names."""
    tensor_parallel_size: Int32 = Field(default=0, ge=0)
    """GPUs that share each adapter; 0 while nobody knows."""
    cordoned: bool = False
    """Whether the pod's label lorafleet.dev/cordoned, or that its node is cordoned, keeps new adapters
    away."""
    traffic: EngineTraffic = EngineTraffic.UNKNOWN
    """Warm, WarmTimedOut, Warming, Draining, Drained, Recycling, Deleting or Unknown."""
    loads: Int64 = Field(default=0, ge=0)
    """Adapters that a worker of the engine has loaded since its vLLM started."""
    host_growth_per_load: Int64 | None = None
    """Bytes by which a worker's own memory grew with each load; left out until there were enough."""
    recycle_due: str = Field(default="", max_length=128)
    """Why the engine is to be recycled by spec.recycle; empty while it is not."""
    recycle_due_since: datetime | None = None
    """Since when it is."""
    max_lora_rank: Int32 = Field(default=0, ge=0)
    """Largest rank that the engine takes (vLLM's max_lora_rank)."""
    max_loras: Int32 = Field(default=0, ge=0)
    """GPU slots of the engine (vLLM's max_loras)."""
    max_cpu_loras: Int32 = Field(default=0, ge=0)
    """Adapters that the engine keeps ready in host memory (vLLM's max_cpu_loras)."""
    loaded: Int32 = Field(default=0, ge=0)
    """Adapters that the engine has loaded."""
    arena_used_bytes: Int64 = Field(default=0, ge=0)
    """Bytes of staged revisions in the engine's arena."""
    arena_limit_bytes: Int64 = Field(default=0, ge=0)
    """Size of the engine's arena in bytes."""


class EnginePoolStatus(ApiModel):
    """What the operator has observed; written by it alone."""

    observed_generation: Int64 | None = Field(default=None, ge=0)
    """Generation of the spec that this status is about."""
    total_engines: Int32 = Field(default=0, ge=0)
    """Pods that the selector finds."""
    ready_engines: Int32 = Field(default=0, ge=0)
    """Engines that take adapters, with or without the plugin."""
    plugin_engines: Int32 = Field(default=0, ge=0)
    """Engines whose vLLM runs the plugin."""
    engines_summary: str = Field(default="", max_length=32)
    """readyEngines/totalEngines, for people."""
    engines: list[PoolEngine] = Field(
        default_factory=list,
        max_length=names.MAX_STATUS_ENGINES,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    """The first hundred engines of the pool, those with trouble first, then those due to be
    recycled."""
    tenants: list[TenantUsage] = Field(
        default_factory=list,
        max_length=names.MAX_STATUS_TENANTS,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    """What the tenants of spec.tenants have of what they may have: the first fifty that have adapters
    here, those nearest to a limit first."""
    routing: RoutingStatus | None = None
    """The pool's own Service; not there without one."""
    recycling: Recycling | None = None
    """The engine that is being recycled, if there is one."""
    recycles: Int64 = Field(default=0, ge=0)
    """Engines that were recycled and came back."""
    last_recycle: Message = ""
    """Which engine was recycled last, and why."""
    recycle_message: Message = ""
    """Which engine is due and what it waits for."""
    safe_point: SafePoint | None = None
    """The safe point that is open, if there is one."""
    conditions: Conditions = Field(default_factory=list)
    """EnginesReady and PluginActive; Routed with spec.routing.service."""


class EnginePool(ApiModel):
    """A set of vLLM engine pods that serve one base model and take LoRA adapters."""

    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    """Standard object metadata."""
    spec: EnginePoolSpec
    """Which pods are engines, and how to reach and bound them."""
    status: EnginePoolStatus = Field(default_factory=EnginePoolStatus)
    """What the operator has observed."""

    @property
    def key(self) -> str:
        """Return `<namespace>/<name>`."""
        return names.pool_key(self.metadata.namespace, self.metadata.name)
