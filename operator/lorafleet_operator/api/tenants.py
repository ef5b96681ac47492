"""Tenants of a pool: whose namespaces they are, what they may take, and what is kept for them."""

from typing import Annotated, Any, Final, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from . import rules
from .fields import DNS_LABEL, LABEL_VALUE, Int32, Int64, NamespaceName, quantity_field
from .meta import ApiModel
from .quantity import to_bytes
from .rules import validations

EVERYBODY: Final = "*"
"""Name of the entry for namespaces that no other entry selects."""


class NamespaceSelector(ApiModel):
    """Which namespaces are the tenant's: by name, or by the labels that they carry."""

    names: list[NamespaceName] = Field(
        default_factory=list, max_length=32, json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    """Names of namespaces."""
    match_labels: dict[
        Annotated[str, Field(max_length=317)],
        Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)],
    ] = Field(default_factory=dict, max_length=8)
    """Labels that the namespaces carry. An operator that serves named namespaces alone may not read
    the labels of any: it knows kubernetes.io/metadata.name, which is the name."""

    model_config = ConfigDict(json_schema_extra=validations(rules.ONE_NAMESPACE_SELECTOR))

    @model_validator(mode="after")
    def _one(self) -> Self:
        if bool(self.names) == bool(self.match_labels):
            raise ValueError(rules.ONE_NAMESPACE_SELECTOR.message)
        return self

    def selects(self, namespace: str, labels: dict[str, str]) -> bool:
        """Return whether the namespace with these labels is one of them."""
        if self.names:
            return namespace in self.names
        return self.match_labels.items() <= labels.items()


class TenantQuota(ApiModel):
    """The most that a tenant gets; nothing limits what is left out."""

    adapters: Int32 | None = Field(default=None, ge=0, le=100_000)
    """Most adapters of the tenant that have engines in this pool."""
    staged_bytes: str | int | None = quantity_field()
    """Most arena bytes of the tenant's adapters on one engine."""
    pinned_bytes: str | int | None = quantity_field()
    """Most arena bytes, on one engine, of the tenant's adapters that keep a GPU slot."""
    slots: Int32 | None = Field(default=None, ge=0, le=10_000)
    """Most adapters of the tenant that keep a GPU slot of their own on one engine."""
    loads_per_minute: Int32 | None = Field(default=None, ge=1, le=100_000)
    """Most loads a minute of the tenant's adapters. A revision that goes to several engines at once is
    one load."""

    transfer_bytes_per_second: str | int | None = quantity_field()
    """Most bytes a second that the operator sends for all adapters of the tenant together, in all its
    namespaces, beside the limits of spec.transfer."""

    @field_validator("staged_bytes", "pinned_bytes", "transfer_bytes_per_second")
    @classmethod
    def _is_quantity(cls, size: str | int | None) -> str | int | None:
        if size is not None:
            to_bytes(size)
        return size


class TenantGuarantee(ApiModel):
    """What is kept for a tenant on each engine, whatever others ask for."""

    slots: Int32 = Field(default=0, ge=0, le=10_000)
    """So many adapters of the tenant keep their place on an engine, in host memory and in a GPU slot:
    the most important, the oldest first. One slot of each engine stays shared."""
    arena_share: str | int | None = Field(
        default=None,
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            **validations(rules.ARENA_SHARE),
        },
    )
    """Bytes of each engine's arena, or a share of what placement may use of it, such as 25%."""

    @field_validator("arena_share")
    @classmethod
    def _is_share(cls, share: str | int | None) -> str | int | None:
        if share is not None and percent_of(share) is None:
            to_bytes(share)
        return share


def percent_of(share: str | int) -> int | None:
    """Return the percentage, None for a quantity of bytes. Raises ValueError outside 1 to 100."""
    if not isinstance(share, str) or not share.endswith("%"):
        return None
    digits = share[:-1]
    if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= 100):
        raise ValueError(rules.ARENA_SHARE.message)
    return int(digits)


class Tenant(ApiModel):
    """One tenant of the pool. Of several that select a namespace, the first counts."""

    name: str = Field(min_length=1, max_length=63, pattern=rf"^\*$|{DNS_LABEL}")
    """Name of the tenant. * is for namespaces that no other entry selects: each of them is a tenant of
    its own with these limits."""
    namespace_selector: NamespaceSelector | None = None
    """Which namespaces are the tenant's; all but * need it."""
    quota: TenantQuota = Field(default_factory=TenantQuota, json_schema_extra={"default": {}})
    """The most that the tenant gets."""
    guarantee: TenantGuarantee | None = None
    """What is kept for the tenant; * can have none."""

    model_config = ConfigDict(
        json_schema_extra=validations(rules.TENANT_SELECTOR, rules.NO_GUARANTEE_FOR_ALL)
    )

    @property
    def by_label(self) -> bool:
        """Whether a namespace is the tenant's by its labels."""
        selector = self.namespace_selector
        return selector is not None and bool(selector.match_labels)

    @model_validator(mode="after")
    def _everybody(self) -> Self:
        if (self.name == EVERYBODY) == (self.namespace_selector is not None):
            raise ValueError(rules.TENANT_SELECTOR.message)
        if self.name == EVERYBODY and self.guarantee is not None:
            raise ValueError(rules.NO_GUARANTEE_FOR_ALL.message)
        return self


class TenantUsage(ApiModel):
    """What a tenant has, beside what it may have; limits are left out where there are none."""

    name: str = Field(max_length=63, pattern=rf"^\*$|{DNS_LABEL}")
    """Name of the entry in spec.tenants."""
    namespace: NamespaceName | None = None
    """Which of the namespaces that * is for; left out for others."""
    adapters: Int32 = Field(default=0, ge=0)
    """Adapters of the tenant that have engines."""
    adapters_quota: Int32 | None = None
    """Most of them."""
    staged_bytes: Int64 = Field(default=0, ge=0)
    """Arena bytes of the tenant's adapters on the engine that has most of them."""
    staged_bytes_quota: Int64 | None = None
    """Most of them on one engine."""
    pinned_bytes: Int64 = Field(default=0, ge=0)
    """Arena bytes of those that keep a GPU slot, on the engine that has most of them."""
    pinned_bytes_quota: Int64 | None = None
    """Most of them on one engine."""
    slots: Int32 = Field(default=0, ge=0)
    """Adapters that keep a GPU slot of their own, on the engine that has most of them."""
    slots_quota: Int32 | None = None
    """Most of them on one engine."""
    guaranteed_slots: Int32 = Field(default=0, ge=0)
    """Slots that every engine keeps for the tenant: fewer than the spec says where an engine has less."""
    guaranteed_bytes: Int64 = Field(default=0, ge=0)
    """Arena bytes that every engine keeps for the tenant."""
    throttled: bool = False
    """Whether loads of the tenant wait for its loadsPerMinute."""


def tenants_field() -> Any:
    """Return the pool's field of tenants."""
    return Field(
        default_factory=list,
        max_length=32,
        json_schema_extra={
            "default": [],
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
    )
