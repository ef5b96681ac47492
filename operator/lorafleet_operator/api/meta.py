"""What every resource has: the base class of the models, metadata, conditions."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MAX_MESSAGE = 4096
"""Longest message of a condition in characters; keeps a status storable."""


class ApiModel(BaseModel):
    """Base of all API types: camelCase outside, snake_case inside, unknown fields ignored.

    The docstring under each field is its description in the CRD and in `kubectl explain`.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        extra="ignore",
        frozen=True,
    )

    def to_api(self) -> dict[str, Any]:
        """Return the JSON form of the API: camelCase, fields without a value left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class ObjectMeta(ApiModel):
    """The part of an object's metadata that the operator reads."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)


class Condition(ApiModel):
    """One observation in the standard shape of Kubernetes (metav1.Condition)."""

    type: str = Field(
        max_length=316,
        pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
        r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
    )
    """What is observed, in CamelCase; positive: True is good."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    observed_generation: int | None = Field(
        default=None, ge=0, json_schema_extra={"format": "int64"}
    )
    """The generation of the object that this was observed for."""
    last_transition_time: datetime
    """When the status last changed from one value to another."""
    reason: str = Field(
        min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
    )
    """Why, as one CamelCase word for programs; docs/resources.md lists them."""
    message: str = Field(max_length=MAX_MESSAGE)
    """Why, as one line for people."""
