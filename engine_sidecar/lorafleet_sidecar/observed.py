"""What the sidecar sees of its engine, as plain values. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lorafleet.v1alpha1 import sidecar_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet.profile import EngineProfile

_COUNTERS = frozenset(pb.WorkerMemory.DESCRIPTOR.fields_by_name)


class Health(Enum):
    """Whether the engine can take adapters; the values are those of the wire's EngineHealth."""

    STARTING = pb.ENGINE_HEALTH_STARTING
    READY = pb.ENGINE_HEALTH_READY
    STOCK = pb.ENGINE_HEALTH_STOCK
    REFUSED = pb.ENGINE_HEALTH_REFUSED


@dataclass(frozen=True)
class Handshake:
    """The plugin's introduction of its engine."""

    instance: str
    vllm_version: str
    plugin_version: str
    compat: str  # "ok", or why the plugin is not live
    lora_enabled: bool
    base_models: tuple[str, ...]
    api_servers: int

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Handshake:
        """Return the handshake of an answer. Raises KeyError for a missing field."""
        return cls(
            instance=str(raw["instance"]),
            vllm_version=str(raw["vllm_version"]),
            plugin_version=str(raw["plugin_version"]),
            compat=str(raw["compat"]),
            lora_enabled=bool(raw["lora_enabled"]),
            base_models=tuple(raw["base_models"]),
            api_servers=int(raw["api_servers"]),
        )


@dataclass(frozen=True)
class EngineRevision:
    """One LoRA id that the engine knows. `digest` and `loader` are empty when it is not ours."""

    lora_int_id: int
    served_name: str
    digest: str
    loader: str
    in_flight: int
    residency: str = ""  # what the engine keeps of it
    verified: bool = False  # its slot was found to hold what was staged
    requests: int = 0  # answered, errors included
    errors: int = 0
    idle_seconds: int = 0  # since a request last looked it up, or since it was loaded
    closed: bool = False  # no new request reaches it, not by its pinned name either

    @classmethod
    def from_json(cls, lora_int_id: str, raw: Mapping[str, Any], volume: Path) -> EngineRevision:
        """Return the revision of a state entry; ours lie at `<volume>/revisions/<hex>/<loader>`.

        The plugin names digest and loader itself, for its container may mount the volume
        elsewhere; the path decides where it does not.
        """
        if raw.get("digest"):
            digest, loader = str(raw["digest"]), str(raw["loader"])
        else:
            digest, loader = split_revision_path(str(raw["path"]), volume)
        name = str(raw["revision"])
        if digest:
            name = name.rpartition("@")[0] or name
        return cls(
            lora_int_id=int(lora_int_id),
            served_name=name,
            digest=digest,
            loader=loader,
            in_flight=int(raw["in_flight"]),
            residency=str(raw.get("residency", "gpu" if raw["pinned"] else "")),
            verified=bool(raw.get("verified", False)),
            requests=int(raw.get("requests", 0)),
            errors=int(raw.get("errors", 0)),
            idle_seconds=int(raw.get("idle_seconds", 0)),
            closed=bool(raw.get("closed", False)),
        )


@dataclass(frozen=True)
class WorkerState:
    """One worker process: which ids sit in its slots and in its registry, and its counters."""

    rank: int
    gpu: frozenset[int]
    host: frozenset[int]
    memory: pb.WorkerMemory

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> WorkerState:
        """Return the worker of a state entry; counters that this version does not know are left out."""
        memory = pb.WorkerMemory()
        for name, value in raw.items():
            if name == "seconds":
                memory.seconds.update({str(phase): float(s) for phase, s in value.items()})
            elif name in _COUNTERS:
                setattr(memory, name, int(value))
        return cls(
            rank=int(raw["rank"]),
            gpu=frozenset(int(each) for each in raw["gpu"]),
            host=frozenset(int(each) for each in raw["host"]),
            memory=memory,
        )


@dataclass(frozen=True)
class FirstRequestFigures:
    """Requests that waited for their adapter, since the engine started."""

    outcomes: Mapping[str, int] = field(default_factory=dict)  # served, refused, expired, gone
    buckets: tuple[float, ...] = ()  # upper bounds of the waits of those that were served, seconds
    waits: tuple[int, ...] = ()  # how many fell into each, the last above all bounds
    seconds: float = 0.0  # all these waits together

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> FirstRequestFigures:
        """Return the figures of a state. Raises KeyError or ValueError for anything else."""
        buckets, waits = tuple(map(float, raw["buckets"])), tuple(map(int, raw["waits"]))
        if len(waits) != len(buckets) + 1:
            raise ValueError(f"{len(waits)} waits for {len(buckets)} buckets")
        outcomes = {str(key): int(value) for key, value in raw["outcomes"].items()}
        return cls(outcomes, buckets, waits, float(raw["seconds"]))


@dataclass(frozen=True)
class EngineState:
    """What the engine serves and holds at one moment."""

    instance: str
    served: Mapping[str, int] = field(default_factory=dict)
    revisions: Mapping[int, EngineRevision] = field(default_factory=dict)
    workers: tuple[WorkerState, ...] = ()
    first_requests: FirstRequestFigures = field(default_factory=FirstRequestFigures)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], volume: Path) -> EngineState:
        """Return the state of an answer. Raises KeyError or ValueError for anything else."""
        revisions = {
            int(key): EngineRevision.from_json(key, value, volume)
            for key, value in raw["revisions"].items()
        }
        return cls(
            instance=str(raw["instance"]),
            served={str(name): int(value) for name, value in raw["served"].items()},
            revisions=revisions,
            workers=tuple(WorkerState.from_json(each) for each in raw["workers"]),
            first_requests=FirstRequestFigures.from_json(raw["first_requests"])
            if "first_requests" in raw
            else FirstRequestFigures(),
        )

    def find(self, served_name: str, digest: str, loader: str) -> EngineRevision | None:
        """Return the loaded revision of that name, content and loader, if there is one."""
        return self._by_content.get((served_name, digest, loader))

    @cached_property
    def _by_content(self) -> dict[tuple[str, str, str], EngineRevision]:
        """Every name is looked up at every look: thousands of them must not mean millions."""
        return {(r.served_name, r.digest, r.loader): r for r in self.revisions.values()}

    def has_any(self, served_name: str) -> bool:
        """Return whether any revision was loaded for the name."""
        return served_name in self._loaded_names

    @cached_property
    def _loaded_names(self) -> set[str]:
        return {each.served_name for each in self.revisions.values()}

    def tier(self, lora_int_id: int) -> pb.Tier:
        """Return the best tier that every worker has the id in; STAGED when one lacks it.

        A stock engine reports no workers: what it serves counts as registered.
        """
        if not self.workers:
            return pb.TIER_HOST
        if all(lora_int_id in each.gpu for each in self.workers):
            return pb.TIER_GPU
        if all(lora_int_id in each.host | each.gpu for each in self.workers):
            return pb.TIER_HOST
        return pb.TIER_STAGED


@dataclass(frozen=True)
class ObservedEngine:
    """The outcome of one look at the engine."""

    health: Health
    message: str = ""  # why health is not READY
    plugin_message: str = ""  # why the plugin is not live
    instance: str = ""
    base_models: tuple[str, ...] = ()
    profile: EngineProfile | None = None
    state: EngineState | None = None

    @property
    def usable(self) -> bool:
        """Whether adapters can be loaded now."""
        return self.health in (Health.READY, Health.STOCK)


def split_revision_path(path: str, volume: Path, folder: str = "revisions") -> tuple[str, str]:
    """Return (digest, last part) of a path below `<volume>/<folder>/<hex>`, or ("", "").

    `plain/<hex>` has no last part: the loader is then "stock".
    """
    try:
        parts = Path(path).relative_to(volume / folder).parts
    except ValueError:
        return "", ""
    if not parts or len(parts[0]) != 64:
        return "", ""
    return f"sha256:{parts[0]}", parts[1] if len(parts) > 1 else "stock"
