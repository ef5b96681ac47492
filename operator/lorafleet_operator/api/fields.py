"""Field types that the resources share: bounded strings, integers with a format, references."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from . import rules
from .meta import ApiModel, Condition
from .rules import validations

DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
NamespaceName = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
Digest = Annotated[str, Field(max_length=71)]
Message = Annotated[
    str,
    BeforeValidator(lambda text: " ".join(text.split())[:1024] if isinstance(text, str) else text),
    Field(max_length=1024),
]
"""One line for people, cut rather than refused: a status that cannot be written helps nobody."""
ShortMessage = Annotated[
    str,
    BeforeValidator(lambda text: " ".join(text.split())[:512] if isinstance(text, str) else text),
    Field(max_length=512),
]
"""One line of which a status holds a hundred."""
Conditions = Annotated[
    list[Condition],
    Field(
        max_length=10,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    ),
]
Int32 = Annotated[int, Field(json_schema_extra={"format": "int32"})]
Int64 = Annotated[int, Field(json_schema_extra={"format": "int64"})]
BaseModelName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=512,
        json_schema_extra=validations(rules.BASE_MODEL_IMMUTABLE, rules.PRINTABLE),
    ),
]


class LocalReference(ApiModel):
    """The name of an object in the same namespace."""

    name: ObjectName
    """Name of the object, which must be in this object's own namespace."""


class PoolReference(ApiModel):
    """The name of an EnginePool, in the same namespace or in one that grants its use."""

    name: ObjectName
    """Name of the EnginePool."""
    namespace: NamespaceName | None = None
    """Namespace of the EnginePool, this object's own if left out. Another one has to hold an
    AdapterGrant that names this object's namespace."""


def quantity_field() -> Any:
    """Return an optional field for a positive quantity of bytes."""
    return Field(
        default=None,
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            **validations(rules.POSITIVE_QUANTITY),
        },
    )
