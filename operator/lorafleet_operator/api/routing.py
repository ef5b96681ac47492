"""How requests find the engines: what people write about Services and HTTPRoutes."""

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from . import rules
from .fields import DNS_LABEL, ObjectName
from .meta import ApiModel
from .rules import validations

_HOSTNAME = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_HEADER = r"^[A-Za-z0-9!#$%&'*+\-.^_`|~]+$"


class HttpRouteParent(ApiModel):
    """The Gateway that the route is for."""

    name: ObjectName
    """Name of the Gateway."""
    namespace: str | None = Field(default=None, min_length=1, max_length=63, pattern=DNS_LABEL)
    """Namespace of the Gateway; the adapter's own if left out. The Gateway has to allow routes from
    the adapter's namespace."""
    section_name: str | None = Field(default=None, min_length=1, max_length=63, pattern=DNS_LABEL)
    """Name of one of the Gateway's listeners; all of them if left out."""


class HttpRouting(ApiModel):
    """An HTTPRoute of the Gateway API that the operator keeps for the adapter."""

    gateway: HttpRouteParent
    """The Gateway that the route is for."""
    hostname: str | None = Field(default=None, max_length=253, pattern=_HOSTNAME)
    """Host whose requests the route takes; those of the Gateway's listeners if left out."""
    model_header: str | None = Field(default=None, min_length=1, max_length=64, pattern=_HEADER)
    """Takes only requests whose header of this name holds the served name, such as
    X-Gateway-Model-Name, which a body-based router sets from the request's `model`. Left out: every
    request to the host."""

    model_config = ConfigDict(json_schema_extra=validations(rules.ROUTE_CHOOSES))

    @model_validator(mode="after")
    def _chooses(self) -> Self:
        if self.hostname is None and self.model_header is None:
            raise ValueError(rules.ROUTE_CHOOSES.message)
        return self


class AdapterRouting(ApiModel):
    """Objects that lead requests to the engines that serve the adapter."""

    service: bool | None = None
    """Whether the adapter has a Service, lora-<name>, that names exactly the engines that serve it
    now. The pool's routing.adapterServices decides if left out."""
    http_route: HttpRouting | None = None
    """An HTTPRoute to that Service, which it brings along. Needs the Gateway API in the cluster.
    With rollout.canary.trafficPercent it splits requests between two Services while a revision is on
    trial."""


class PoolRouting(ApiModel):
    """Objects that lead requests to the pool's engines."""

    service: bool = False
    """Whether the pool has a Service, lorapool-<name>, that selects its pods: those that are ready
    get requests."""
    adapter_services: bool = False
    """Whether adapters of the pool have a Service unless they say otherwise."""


class RoutingStatus(ApiModel):
    """The objects that lead requests to the engines."""

    service: str = Field(default="", max_length=63)
    """Name of the Service, in this namespace."""
    http_route: str = Field(default="", max_length=63)
    """Name of the HTTPRoute, in this namespace."""
