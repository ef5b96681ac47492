"""What an EnginePool says of engines that start, go and are started again."""

from datetime import datetime
from enum import StrEnum
from typing import Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from . import rules
from .fields import Int32, Message, ShortMessage, quantity_field
from .meta import ApiModel
from .quantity import to_bytes
from .rules import validations


class WarmPolicy(StrEnum):
    """What an engine has to serve before its pod counts as ready."""

    PLANNED = "Planned"  # every adapter that the plan chose for it and that can be loaded
    NONE = "None"  # nothing


class WarmSet(ApiModel):
    """What pods with the readiness gate lorafleet.dev/warm wait for after each start of vLLM."""

    policy: WarmPolicy = WarmPolicy.PLANNED
    """Planned: every adapter that was chosen for the engine and has content that it takes. None:
    nothing but an engine that takes orders."""
    timeout_seconds: Int32 = Field(default=600, ge=1, le=86_400)
    """Longest wait in seconds; then the pod counts as ready, and an Event names what is missing."""


class RecycleWhen(StrEnum):
    """When an engine that is due may be recycled."""

    ALWAYS = "Always"  # as soon as it is due
    SAFE_POINT = "SafePoint"  # while a trainer holds a safe point open, or after maxWaitSeconds


class RecycleRule(ApiModel):
    """When an engine's vLLM is started again to free host memory: one engine of the pool at a time."""

    when: RecycleWhen = RecycleWhen.ALWAYS
    """Always: as soon as an engine is due. SafePoint: while a trainer that may do so says that it is a
    good moment (lorafleet.push: `fleet.safe_point()`)."""
    max_wait_seconds: Int32 | None = Field(default=None, ge=1, le=2_592_000)
    """Longest time in seconds that a due engine waits for a safe point; for ever if left out."""

    max_host_growth_per_load: str | int | None = quantity_field()
    """Most bytes by which a worker's own memory may grow with each load, on average since its first
    loads; any growth is allowed if left out."""
    max_loads: Int32 | None = Field(default=None, ge=1)
    """Most adapters that an engine loads before it is started again; any number if left out."""
    drain_seconds: Int32 = Field(default=300, ge=0, le=86_400)
    """Longest wait in seconds, without new traffic, for a moment with no request running."""
    min_ready_engines: Int32 = Field(default=1, ge=0, le=1000)
    """Fewest other engines that have to take traffic meanwhile; 0 for a pool of one engine."""

    model_config = ConfigDict(
        json_schema_extra=validations(rules.RECYCLE_NEEDS_A_BOUND, rules.MAX_WAIT_NEEDS_SAFE_POINT)
    )

    @field_validator("max_host_growth_per_load")
    @classmethod
    def _is_quantity(cls, growth: str | int | None) -> str | int | None:
        if growth is not None:
            to_bytes(growth)
        return growth

    @model_validator(mode="after")
    def _needs_a_bound(self) -> Self:
        if self.max_host_growth_per_load is None and self.max_loads is None:
            raise ValueError(rules.RECYCLE_NEEDS_A_BOUND.message)
        if self.max_wait_seconds is not None and self.when is not RecycleWhen.SAFE_POINT:
            raise ValueError(rules.MAX_WAIT_NEEDS_SAFE_POINT.message)
        return self

    @property
    def growth_bytes(self) -> int | None:
        """Return the growth in bytes, None for any."""
        growth = self.max_host_growth_per_load
        return None if growth is None else to_bytes(growth)


class EngineTraffic(StrEnum):
    """Whether an engine is to be sent requests, and why; also the reason of the pod's condition.

    Requests go to an engine that is Warm, WarmTimedOut or Draining.
    """

    WARM = "Warm"  # serves what it should have from the start
    WARM_TIMED_OUT = "WarmTimedOut"  # lacks some of it, and has been waited for long enough
    WARMING = "Warming"  # waited for
    DRAINING = "Draining"  # marked for drain: serves until other engines have its adapters
    DRAINED = "Drained"  # marked for drain: running requests end
    RECYCLING = "Recycling"  # vLLM is about to be started again
    DELETING = "Deleting"  # the pod is being deleted
    UNKNOWN = "Unknown"  # nobody can say: the sidecar does not answer

    @property
    def open(self) -> bool:
        """Whether requests may be sent to the engine."""
        return self in (EngineTraffic.WARM, EngineTraffic.WARM_TIMED_OUT, EngineTraffic.DRAINING)


class Recycling(ApiModel):
    """The engine whose vLLM is being started again."""

    pod_name: str = Field(max_length=253)
    """Name of the engine's pod."""
    engine: str = Field(max_length=128)
    """The instance that has to end."""
    since: datetime
    """When it was chosen."""
    message: Message = ""
    """Why."""


class SafePoint(ApiModel):
    """That engines which are due may be recycled now."""

    open_until: datetime
    """When it is over unless it is renewed, as it is for as long as a trainer's call lasts."""
    opened_by: list[ShortMessage] = Field(
        default_factory=list,
        max_length=8,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    """Accounts that hold it open, the first eight."""
