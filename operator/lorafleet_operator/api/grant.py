"""AdapterGrant: what a namespace lets the adapters of other namespaces use."""

from enum import StrEnum

from pydantic import Field

from .fields import NamespaceName
from .meta import ApiModel, ObjectMeta


class GrantedKind(StrEnum):
    """What can be granted."""

    ENGINE_POOL = "EnginePool"  # to be served by a pool of this namespace
    SERVED_NAME = "ServedName"  # to be served under a name that begins with this namespace's


class GrantedNamespace(ApiModel):
    """Whose adapters may use it."""

    namespace: NamespaceName
    """Name of the namespace of the adapters."""


class GrantedObject(ApiModel):
    """What they may use."""

    kind: GrantedKind
    """EnginePool: a pool of this namespace. ServedName: a served name <this namespace>/..."""
    name: str | None = Field(default=None, min_length=1, max_length=253)
    """Name of the pool, or the whole served name; all of the kind if left out."""


class AdapterGrantSpec(ApiModel):
    """Who may use what of this namespace."""

    from_: list[GrantedNamespace] = Field(
        alias="from",
        min_length=1,
        max_length=64,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    """Namespaces whose adapters are granted it."""
    to: list[GrantedObject] = Field(
        min_length=1, max_length=32, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """What is granted, each to all of them."""


class AdapterGrant(ApiModel):
    """Lets LoRAAdapters of other namespaces use what is in this one. Deleting it takes it back."""

    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    """Standard object metadata."""
    spec: AdapterGrantSpec
    """Who may use what of this namespace."""

    @property
    def key(self) -> str:
        """Return `<namespace>/<name>`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def allows(self, namespace: str, kind: GrantedKind, name: str) -> bool:
        """Return whether adapters of `namespace` may use the object."""
        return any(each.namespace == namespace for each in self.spec.from_) and any(
            each.kind is kind and each.name in (None, name) for each in self.spec.to
        )
