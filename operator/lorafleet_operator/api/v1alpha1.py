"""The resources of lorafleet.dev/v1alpha1: import them from here.

The CRDs in crds/ are generated from these classes (schema.py); docstrings become the
descriptions of `kubectl explain`. Bounds keep the spec of an adapter below 64 KiB, that of a
pool below 256 KiB, and a status below what the API server stores. What CEL checks at the API server (rules.py) the models check too, so that
`lorafleet-operator plan -f FILE` refuses what the API server would refuse.
"""

from .adapter import (
    AdapterEngine,
    DropUnmatched,
    EngineRefusal,
    Loader,
    LoRAAdapter,
    LoRAAdapterSpec,
    LoRAAdapterStatus,
    Placement,
    PlacementPolicy,
    PushedStep,
    Residency,
    Tier,
)
from .fields import LocalReference, PoolReference
from .grant import AdapterGrant, GrantedKind
from .lifecycle import (
    EngineTraffic,
    RecycleRule,
    RecycleWhen,
    Recycling,
    SafePoint,
    WarmPolicy,
    WarmSet,
)
from .meta import Condition, ObjectMeta
from .pool import (
    EngineHealth,
    EnginePool,
    EnginePoolSpec,
    EnginePoolStatus,
    EngineSelector,
    PoolEngine,
    TransferLimits,
)
from .rollout import (
    Canary,
    CanaryStatus,
    Decision,
    Draining,
    Probe,
    Revision,
    RolledBack,
    Rollout,
    RolloutStatus,
)
from .routing import AdapterRouting, HttpRouteParent, HttpRouting, PoolRouting, RoutingStatus
from .source import (
    AdapterSource,
    AzureBlobSource,
    GcsSource,
    HttpSource,
    HuggingFaceSource,
    OciSource,
    S3Source,
    VolumeSource,
)
from .tenants import NamespaceSelector, Tenant, TenantGuarantee, TenantQuota, TenantUsage

__all__ = [
    "AdapterEngine",
    "AdapterGrant",
    "AdapterRouting",
    "AdapterSource",
    "AzureBlobSource",
    "Canary",
    "CanaryStatus",
    "Condition",
    "Decision",
    "Draining",
    "DropUnmatched",
    "EngineHealth",
    "EnginePool",
    "EnginePoolSpec",
    "EnginePoolStatus",
    "EngineRefusal",
    "EngineSelector",
    "EngineTraffic",
    "GcsSource",
    "GrantedKind",
    "HttpRouteParent",
    "HttpRouting",
    "HttpSource",
    "HuggingFaceSource",
    "LoRAAdapter",
    "LoRAAdapterSpec",
    "LoRAAdapterStatus",
    "Loader",
    "LocalReference",
    "NamespaceSelector",
    "ObjectMeta",
    "OciSource",
    "Placement",
    "PlacementPolicy",
    "PoolEngine",
    "PoolReference",
    "PoolRouting",
    "Probe",
    "PushedStep",
    "RecycleRule",
    "RecycleWhen",
    "Recycling",
    "Residency",
    "Revision",
    "RolledBack",
    "Rollout",
    "RolloutStatus",
    "RoutingStatus",
    "S3Source",
    "SafePoint",
    "Tenant",
    "TenantGuarantee",
    "TenantQuota",
    "TenantUsage",
    "Tier",
    "TransferLimits",
    "VolumeSource",
    "WarmPolicy",
    "WarmSet",
]
