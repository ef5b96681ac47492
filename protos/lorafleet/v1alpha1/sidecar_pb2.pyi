from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_GPU: _ClassVar[Tier]
    TIER_HOST: _ClassVar[Tier]
    TIER_STAGED: _ClassVar[Tier]
    TIER_SOURCE: _ClassVar[Tier]

class EngineHealth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_HEALTH_UNSPECIFIED: _ClassVar[EngineHealth]
    ENGINE_HEALTH_STARTING: _ClassVar[EngineHealth]
    ENGINE_HEALTH_READY: _ClassVar[EngineHealth]
    ENGINE_HEALTH_STOCK: _ClassVar[EngineHealth]
    ENGINE_HEALTH_REFUSED: _ClassVar[EngineHealth]
TIER_UNSPECIFIED: Tier
TIER_GPU: Tier
TIER_HOST: Tier
TIER_STAGED: Tier
TIER_SOURCE: Tier
ENGINE_HEALTH_UNSPECIFIED: EngineHealth
ENGINE_HEALTH_STARTING: EngineHealth
ENGINE_HEALTH_READY: EngineHealth
ENGINE_HEALTH_STOCK: EngineHealth
ENGINE_HEALTH_REFUSED: EngineHealth

class StageAdapterRequest(_message.Message):
    __slots__ = ("manifest", "chunk", "commit")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    manifest: AdapterManifest
    chunk: AdapterChunk
    commit: CommitStaging
    def __init__(self, manifest: _Optional[_Union[AdapterManifest, _Mapping]] = ..., chunk: _Optional[_Union[AdapterChunk, _Mapping]] = ..., commit: _Optional[_Union[CommitStaging, _Mapping]] = ...) -> None: ...

class StageAdapterResponse(_message.Message):
    __slots__ = ("accepted", "committed", "forwarded")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    accepted: StagingAccepted
    committed: StagedRevision
    forwarded: ForwardReport
    def __init__(self, accepted: _Optional[_Union[StagingAccepted, _Mapping]] = ..., committed: _Optional[_Union[StagedRevision, _Mapping]] = ..., forwarded: _Optional[_Union[ForwardReport, _Mapping]] = ...) -> None: ...

class AdapterManifest(_message.Message):
    __slots__ = ("adapter", "fingerprint", "safetensors_header", "adapter_config", "data_bytes", "chunk_bytes", "expected_digest", "allow_base_mismatch", "adapter_name", "drop_unmatched", "whole", "forward_to", "pod_uid", "canonical", "notes", "tensor_digests", "cut_before")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SAFETENSORS_HEADER_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_CONFIG_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ALLOW_BASE_MISMATCH_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_NAME_FIELD_NUMBER: _ClassVar[int]
    DROP_UNMATCHED_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    FORWARD_TO_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    CANONICAL_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    CUT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    fingerprint: str
    safetensors_header: bytes
    adapter_config: bytes
    data_bytes: int
    chunk_bytes: int
    expected_digest: str
    allow_base_mismatch: bool
    adapter_name: str
    drop_unmatched: str
    whole: bool
    forward_to: _containers.RepeatedCompositeFieldContainer[Neighbour]
    pod_uid: str
    canonical: bool
    notes: _containers.RepeatedScalarFieldContainer[str]
    tensor_digests: _containers.RepeatedScalarFieldContainer[bytes]
    cut_before: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, adapter: _Optional[str] = ..., fingerprint: _Optional[str] = ..., safetensors_header: _Optional[bytes] = ..., adapter_config: _Optional[bytes] = ..., data_bytes: _Optional[int] = ..., chunk_bytes: _Optional[int] = ..., expected_digest: _Optional[str] = ..., allow_base_mismatch: _Optional[bool] = ..., adapter_name: _Optional[str] = ..., drop_unmatched: _Optional[str] = ..., whole: _Optional[bool] = ..., forward_to: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ..., pod_uid: _Optional[str] = ..., canonical: _Optional[bool] = ..., notes: _Optional[_Iterable[str]] = ..., tensor_digests: _Optional[_Iterable[bytes]] = ..., cut_before: _Optional[_Iterable[int]] = ...) -> None: ...

class Neighbour(_message.Message):
    __slots__ = ("pod_uid", "host", "port")
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    pod_uid: str
    host: str
    port: int
    def __init__(self, pod_uid: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class ForwardOutcome(_message.Message):
    __slots__ = ("pod_uid", "committed", "reason", "message")
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    pod_uid: str
    committed: StagedRevision
    reason: str
    message: str
    def __init__(self, pod_uid: _Optional[str] = ..., committed: _Optional[_Union[StagedRevision, _Mapping]] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ForwardReport(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[ForwardOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[ForwardOutcome, _Mapping]]] = ...) -> None: ...

class SendAdapterRequest(_message.Message):
    __slots__ = ("digest", "adapter", "fingerprint", "allow_base_mismatch", "adapter_name", "drop_unmatched", "chunk_bytes", "to")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ALLOW_BASE_MISMATCH_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_NAME_FIELD_NUMBER: _ClassVar[int]
    DROP_UNMATCHED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    digest: str
    adapter: str
    fingerprint: str
    allow_base_mismatch: bool
    adapter_name: str
    drop_unmatched: str
    chunk_bytes: int
    to: _containers.RepeatedCompositeFieldContainer[Neighbour]
    def __init__(self, digest: _Optional[str] = ..., adapter: _Optional[str] = ..., fingerprint: _Optional[str] = ..., allow_base_mismatch: _Optional[bool] = ..., adapter_name: _Optional[str] = ..., drop_unmatched: _Optional[str] = ..., chunk_bytes: _Optional[int] = ..., to: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ...) -> None: ...

class SendAdapterResponse(_message.Message):
    __slots__ = ("report",)
    REPORT_FIELD_NUMBER: _ClassVar[int]
    report: ForwardReport
    def __init__(self, report: _Optional[_Union[ForwardReport, _Mapping]] = ...) -> None: ...

class AdapterChunk(_message.Message):
    __slots__ = ("offset", "crc32c", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    crc32c: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., crc32c: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class CommitStaging(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StagingAccepted(_message.Message):
    __slots__ = ("staging_id", "missing_chunks", "receiver_ports")
    STAGING_ID_FIELD_NUMBER: _ClassVar[int]
    MISSING_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_PORTS_FIELD_NUMBER: _ClassVar[int]
    staging_id: str
    missing_chunks: _containers.RepeatedScalarFieldContainer[int]
    receiver_ports: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, staging_id: _Optional[str] = ..., missing_chunks: _Optional[_Iterable[int]] = ..., receiver_ports: _Optional[_Iterable[int]] = ...) -> None: ...

class SendChunksRequest(_message.Message):
    __slots__ = ("staging_id", "chunk")
    STAGING_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    staging_id: str
    chunk: AdapterChunk
    def __init__(self, staging_id: _Optional[str] = ..., chunk: _Optional[_Union[AdapterChunk, _Mapping]] = ...) -> None: ...

class SendChunksResponse(_message.Message):
    __slots__ = ("received_bytes",)
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    received_bytes: int
    def __init__(self, received_bytes: _Optional[int] = ...) -> None: ...

class StagedRevision(_message.Message):
    __slots__ = ("digest", "fingerprint", "size_bytes", "rank", "adapter", "notes", "in_use", "kept")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    digest: str
    fingerprint: str
    size_bytes: int
    rank: int
    adapter: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    in_use: bool
    kept: bool
    def __init__(self, digest: _Optional[str] = ..., fingerprint: _Optional[str] = ..., size_bytes: _Optional[int] = ..., rank: _Optional[int] = ..., adapter: _Optional[str] = ..., notes: _Optional[_Iterable[str]] = ..., in_use: _Optional[bool] = ..., kept: _Optional[bool] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("adapter", "served_name", "digest", "loader", "pinned", "publish", "drain_timeout_seconds", "keep", "abort_seconds", "probe", "free_others", "residency", "two_phase")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    SERVED_NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LOADER_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    DRAIN_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    ABORT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    FREE_OTHERS_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    TWO_PHASE_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    served_name: str
    digest: str
    loader: str
    pinned: bool
    publish: bool
    drain_timeout_seconds: int
    keep: _containers.RepeatedScalarFieldContainer[str]
    abort_seconds: int
    probe: Probe
    free_others: bool
    residency: str
    two_phase: bool
    def __init__(self, adapter: _Optional[str] = ..., served_name: _Optional[str] = ..., digest: _Optional[str] = ..., loader: _Optional[str] = ..., pinned: _Optional[bool] = ..., publish: _Optional[bool] = ..., drain_timeout_seconds: _Optional[int] = ..., keep: _Optional[_Iterable[str]] = ..., abort_seconds: _Optional[int] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ..., free_others: _Optional[bool] = ..., residency: _Optional[str] = ..., two_phase: _Optional[bool] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("prompt", "expect", "max_tokens")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    EXPECT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    expect: str
    max_tokens: int
    def __init__(self, prompt: _Optional[str] = ..., expect: _Optional[str] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ("loaded",)
    LOADED_FIELD_NUMBER: _ClassVar[int]
    loaded: LoadedAdapter
    def __init__(self, loaded: _Optional[_Union[LoadedAdapter, _Mapping]] = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("adapter", "served_name", "drain_timeout_seconds", "drop_staged", "abort_seconds")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    SERVED_NAME_FIELD_NUMBER: _ClassVar[int]
    DRAIN_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DROP_STAGED_FIELD_NUMBER: _ClassVar[int]
    ABORT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    served_name: str
    drain_timeout_seconds: int
    drop_staged: bool
    abort_seconds: int
    def __init__(self, adapter: _Optional[str] = ..., served_name: _Optional[str] = ..., drain_timeout_seconds: _Optional[int] = ..., drop_staged: _Optional[bool] = ..., abort_seconds: _Optional[int] = ...) -> None: ...

class UnloadAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestartEngineRequest(_message.Message):
    __slots__ = ("engine_instance", "force")
    ENGINE_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    engine_instance: str
    force: bool
    def __init__(self, engine_instance: _Optional[str] = ..., force: _Optional[bool] = ...) -> None: ...

class RestartEngineResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RefuseNamesRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedCompositeFieldContainer[RefusedName]
    def __init__(self, names: _Optional[_Iterable[_Union[RefusedName, _Mapping]]] = ...) -> None: ...

class RefusedName(_message.Message):
    __slots__ = ("served_name", "message", "exists")
    SERVED_NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    served_name: str
    message: str
    exists: bool
    def __init__(self, served_name: _Optional[str] = ..., message: _Optional[str] = ..., exists: _Optional[bool] = ...) -> None: ...

class RefuseNamesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoadedAdapter(_message.Message):
    __slots__ = ("adapter", "served_name", "digest", "lora_int_id", "tier", "published", "in_flight", "pinned", "loader", "draining", "requests", "errors", "residency", "idle_seconds", "unproved")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    SERVED_NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LORA_INT_ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    LOADER_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNPROVED_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    served_name: str
    digest: str
    lora_int_id: int
    tier: Tier
    published: bool
    in_flight: int
    pinned: bool
    loader: str
    draining: bool
    requests: int
    errors: int
    residency: str
    idle_seconds: int
    unproved: bool
    def __init__(self, adapter: _Optional[str] = ..., served_name: _Optional[str] = ..., digest: _Optional[str] = ..., lora_int_id: _Optional[int] = ..., tier: _Optional[_Union[Tier, str]] = ..., published: _Optional[bool] = ..., in_flight: _Optional[int] = ..., pinned: _Optional[bool] = ..., loader: _Optional[str] = ..., draining: _Optional[bool] = ..., requests: _Optional[int] = ..., errors: _Optional[int] = ..., residency: _Optional[str] = ..., idle_seconds: _Optional[int] = ..., unproved: _Optional[bool] = ...) -> None: ...

class ListAdaptersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAdaptersResponse(_message.Message):
    __slots__ = ("inventory",)
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    inventory: Inventory
    def __init__(self, inventory: _Optional[_Union[Inventory, _Mapping]] = ...) -> None: ...

class Inventory(_message.Message):
    __slots__ = ("pod_uid", "engine_instance", "health", "health_message", "staged", "loaded", "arena", "workers", "max_loras", "max_cpu_loras", "max_lora_rank", "base_model", "plugin_message", "sequence", "forwards", "requested", "reuses")
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    HEALTH_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_LORAS_FIELD_NUMBER: _ClassVar[int]
    MAX_CPU_LORAS_FIELD_NUMBER: _ClassVar[int]
    MAX_LORA_RANK_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FORWARDS_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    REUSES_FIELD_NUMBER: _ClassVar[int]
    pod_uid: str
    engine_instance: str
    health: EngineHealth
    health_message: str
    staged: _containers.RepeatedCompositeFieldContainer[StagedRevision]
    loaded: _containers.RepeatedCompositeFieldContainer[LoadedAdapter]
    arena: ArenaUsage
    workers: _containers.RepeatedCompositeFieldContainer[WorkerMemory]
    max_loras: int
    max_cpu_loras: int
    max_lora_rank: int
    base_model: str
    plugin_message: str
    sequence: int
    forwards: bool
    requested: _containers.RepeatedScalarFieldContainer[str]
    reuses: bool
    def __init__(self, pod_uid: _Optional[str] = ..., engine_instance: _Optional[str] = ..., health: _Optional[_Union[EngineHealth, str]] = ..., health_message: _Optional[str] = ..., staged: _Optional[_Iterable[_Union[StagedRevision, _Mapping]]] = ..., loaded: _Optional[_Iterable[_Union[LoadedAdapter, _Mapping]]] = ..., arena: _Optional[_Union[ArenaUsage, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[WorkerMemory, _Mapping]]] = ..., max_loras: _Optional[int] = ..., max_cpu_loras: _Optional[int] = ..., max_lora_rank: _Optional[int] = ..., base_model: _Optional[str] = ..., plugin_message: _Optional[str] = ..., sequence: _Optional[int] = ..., forwards: _Optional[bool] = ..., requested: _Optional[_Iterable[str]] = ..., reuses: _Optional[bool] = ...) -> None: ...

class ArenaUsage(_message.Message):
    __slots__ = ("limit_bytes", "used_bytes", "reserved_bytes", "in_use_bytes", "largest_free_bytes")
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    IN_USE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    limit_bytes: int
    used_bytes: int
    reserved_bytes: int
    in_use_bytes: int
    largest_free_bytes: int
    def __init__(self, limit_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., in_use_bytes: _Optional[int] = ..., largest_free_bytes: _Optional[int] = ...) -> None: ...

class WorkerMemory(_message.Message):
    __slots__ = ("rank", "slot_bytes", "temporary_peak_bytes", "temporary_kept_bytes", "registered_host_bytes", "pinned_host_bytes", "torch_allocated_bytes", "torch_reserved_bytes", "loads", "evictions", "rebuilds", "offloads", "seconds", "resident_host_bytes", "private_host_bytes", "baseline_host_bytes", "baseline_loads", "weights_bytes", "kv_cache_bytes", "slot_evictions")
    class SecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RANK_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TEMPORARY_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    TEMPORARY_KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    TORCH_ALLOCATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TORCH_RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    REBUILDS_FIELD_NUMBER: _ClassVar[int]
    OFFLOADS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    BASELINE_HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    BASELINE_LOADS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOT_EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    slot_bytes: int
    temporary_peak_bytes: int
    temporary_kept_bytes: int
    registered_host_bytes: int
    pinned_host_bytes: int
    torch_allocated_bytes: int
    torch_reserved_bytes: int
    loads: int
    evictions: int
    rebuilds: int
    offloads: int
    seconds: _containers.ScalarMap[str, float]
    resident_host_bytes: int
    private_host_bytes: int
    baseline_host_bytes: int
    baseline_loads: int
    weights_bytes: int
    kv_cache_bytes: int
    slot_evictions: int
    def __init__(self, rank: _Optional[int] = ..., slot_bytes: _Optional[int] = ..., temporary_peak_bytes: _Optional[int] = ..., temporary_kept_bytes: _Optional[int] = ..., registered_host_bytes: _Optional[int] = ..., pinned_host_bytes: _Optional[int] = ..., torch_allocated_bytes: _Optional[int] = ..., torch_reserved_bytes: _Optional[int] = ..., loads: _Optional[int] = ..., evictions: _Optional[int] = ..., rebuilds: _Optional[int] = ..., offloads: _Optional[int] = ..., seconds: _Optional[_Mapping[str, float]] = ..., resident_host_bytes: _Optional[int] = ..., private_host_bytes: _Optional[int] = ..., baseline_host_bytes: _Optional[int] = ..., baseline_loads: _Optional[int] = ..., weights_bytes: _Optional[int] = ..., kv_cache_bytes: _Optional[int] = ..., slot_evictions: _Optional[int] = ...) -> None: ...

class GetEngineProfileRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetEngineProfileResponse(_message.Message):
    __slots__ = ("profile_json",)
    PROFILE_JSON_FIELD_NUMBER: _ClassVar[int]
    profile_json: str
    def __init__(self, profile_json: _Optional[str] = ...) -> None: ...

class WatchEngineRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchEngineResponse(_message.Message):
    __slots__ = ("inventory",)
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    inventory: Inventory
    def __init__(self, inventory: _Optional[_Union[Inventory, _Mapping]] = ...) -> None: ...
