from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PushRequest(_message.Message):
    __slots__ = ("manifest", "bytes", "commit")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    manifest: PushManifest
    bytes: PushedBytes
    commit: CommitPush
    def __init__(self, manifest: _Optional[_Union[PushManifest, _Mapping]] = ..., bytes: _Optional[_Union[PushedBytes, _Mapping]] = ..., commit: _Optional[_Union[CommitPush, _Mapping]] = ...) -> None: ...

class PushResponse(_message.Message):
    __slots__ = ("accepted", "committed")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    accepted: PushAccepted
    committed: PushCommitted
    def __init__(self, accepted: _Optional[_Union[PushAccepted, _Mapping]] = ..., committed: _Optional[_Union[PushCommitted, _Mapping]] = ...) -> None: ...

class PushManifest(_message.Message):
    __slots__ = ("namespace", "name", "base_model", "pool", "pool_namespace", "served_name", "adapter_config", "safetensors_header", "tensor_digests", "step", "atomic")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    POOL_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SERVED_NAME_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_CONFIG_FIELD_NUMBER: _ClassVar[int]
    SAFETENSORS_HEADER_FIELD_NUMBER: _ClassVar[int]
    TENSOR_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATOMIC_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    base_model: str
    pool: str
    pool_namespace: str
    served_name: str
    adapter_config: bytes
    safetensors_header: bytes
    tensor_digests: _containers.RepeatedScalarFieldContainer[bytes]
    step: int
    atomic: bool
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., base_model: _Optional[str] = ..., pool: _Optional[str] = ..., pool_namespace: _Optional[str] = ..., served_name: _Optional[str] = ..., adapter_config: _Optional[bytes] = ..., safetensors_header: _Optional[bytes] = ..., tensor_digests: _Optional[_Iterable[bytes]] = ..., step: _Optional[int] = ..., atomic: _Optional[bool] = ...) -> None: ...

class PushAccepted(_message.Message):
    __slots__ = ("missing", "runs_on")
    MISSING_FIELD_NUMBER: _ClassVar[int]
    RUNS_ON_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedScalarFieldContainer[int]
    runs_on: bool
    def __init__(self, missing: _Optional[_Iterable[int]] = ..., runs_on: _Optional[bool] = ...) -> None: ...

class PushedBytes(_message.Message):
    __slots__ = ("tensor", "offset", "data")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    tensor: int
    offset: int
    data: bytes
    def __init__(self, tensor: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class CommitPush(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PushCommitted(_message.Message):
    __slots__ = ("revision", "generation", "received_bytes", "unchanged")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    revision: str
    generation: int
    received_bytes: int
    unchanged: bool
    def __init__(self, revision: _Optional[str] = ..., generation: _Optional[int] = ..., received_bytes: _Optional[int] = ..., unchanged: _Optional[bool] = ...) -> None: ...

class WatchPushRequest(_message.Message):
    __slots__ = ("namespace", "name")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class PushStatus(_message.Message):
    __slots__ = ("revision", "step", "generation", "observed_generation", "ready", "reason", "message", "engines")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    revision: str
    step: int
    generation: int
    observed_generation: int
    ready: bool
    reason: str
    message: str
    engines: _containers.RepeatedCompositeFieldContainer[PushedEngine]
    def __init__(self, revision: _Optional[str] = ..., step: _Optional[int] = ..., generation: _Optional[int] = ..., observed_generation: _Optional[int] = ..., ready: _Optional[bool] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., engines: _Optional[_Iterable[_Union[PushedEngine, _Mapping]]] = ...) -> None: ...

class PushedEngine(_message.Message):
    __slots__ = ("pod", "revision", "step", "digest")
    POD_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    pod: str
    revision: str
    step: int
    digest: str
    def __init__(self, pod: _Optional[str] = ..., revision: _Optional[str] = ..., step: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class OpenSafePointRequest(_message.Message):
    __slots__ = ("namespace", "name", "timeout_seconds")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    timeout_seconds: int
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., timeout_seconds: _Optional[int] = ...) -> None: ...

class SafePointStatus(_message.Message):
    __slots__ = ("done", "message", "engines")
    DONE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    done: bool
    message: str
    engines: _containers.RepeatedCompositeFieldContainer[SafePointEngine]
    def __init__(self, done: _Optional[bool] = ..., message: _Optional[str] = ..., engines: _Optional[_Iterable[_Union[SafePointEngine, _Mapping]]] = ...) -> None: ...

class SafePointEngine(_message.Message):
    __slots__ = ("pod", "loads", "growth_per_load", "due", "instance", "host_bytes")
    POD_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    GROWTH_PER_LOAD_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    pod: str
    loads: int
    growth_per_load: int
    due: str
    instance: str
    host_bytes: int
    def __init__(self, pod: _Optional[str] = ..., loads: _Optional[int] = ..., growth_per_load: _Optional[int] = ..., due: _Optional[str] = ..., instance: _Optional[str] = ..., host_bytes: _Optional[int] = ...) -> None: ...
