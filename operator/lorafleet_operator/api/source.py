"""`spec.source`: where an adapter's files are."""

import re
from typing import Annotated, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from . import names, rules
from .fields import Int32, Int64, LocalReference, ObjectName
from .meta import ApiModel
from .rules import validations

Folder = Annotated[
    str,
    Field(max_length=1024, json_schema_extra=validations(rules.RELATIVE_PATH, rules.PRINTABLE)),
]
WebAddress = Annotated[
    str,
    Field(max_length=512, json_schema_extra=validations(rules.HTTP_URL, rules.NO_USER_IN_URL)),
]


class S3Source(ApiModel):
    """A prefix of a bucket that holds adapter_config.json and adapter_model.safetensors."""

    bucket: str = Field(min_length=3, max_length=255, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*$")
    """Name of the bucket."""
    prefix: Folder = ""
    """The adapter's folder in the bucket; empty for the bucket's root."""
    region: str | None = Field(default=None, max_length=64, pattern=r"^[a-zA-Z0-9-]+$")
    """Region of the bucket."""
    endpoint: WebAddress | None = None
    """URL of a server other than Amazon's that speaks S3."""
    path_style: bool = False
    """Whether the bucket is the first part of the path instead of a part of the host name."""

    @field_validator("prefix")
    @classmethod
    def _prefix_is_relative(cls, prefix: str) -> str:
        return _relative(prefix)


class HttpSource(ApiModel):
    """A web server that holds adapter_config.json and adapter_model.safetensors."""

    url: str = Field(
        min_length=1,
        max_length=2048,
        json_schema_extra=validations(rules.HTTP_URL, rules.NO_USER_IN_URL),
    )
    """URL of the folder with both files, or of the .safetensors file with the other beside it."""

    @field_validator("url")
    @classmethod
    def _is_web_address(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url {url!r}: {rules.HTTP_URL.message}")
        return url


class GcsSource(ApiModel):
    """A prefix of a Google Cloud Storage bucket with the adapter's two files."""

    bucket: str = Field(min_length=3, max_length=222, pattern=r"^[a-z0-9][a-z0-9._-]*$")
    """Name of the bucket."""
    prefix: Folder = ""
    """The adapter's folder in the bucket; empty for the bucket's root."""
    endpoint: WebAddress | None = None
    """URL of a server other than Google's that speaks its XML interface."""

    @field_validator("prefix")
    @classmethod
    def _prefix_is_relative(cls, prefix: str) -> str:
        return _relative(prefix)


class AzureBlobSource(ApiModel):
    """A prefix of an Azure Blob Storage container with the adapter's two files."""

    account: str = Field(min_length=3, max_length=24, pattern=r"^[a-z0-9]+$")
    """Name of the storage account."""
    container: str = Field(min_length=3, max_length=63, pattern=r"^\$?[a-z0-9][a-z0-9-]*$")
    """Name of the container."""
    prefix: Folder = ""
    """The adapter's folder in the container; empty for the container's root."""
    endpoint: WebAddress | None = None
    """URL below which the account's containers lie, if not
    https://<account>.blob.core.windows.net."""

    @field_validator("prefix")
    @classmethod
    def _prefix_is_relative(cls, prefix: str) -> str:
        return _relative(prefix)


class HuggingFaceSource(ApiModel):
    """A repository of the Hugging Face hub or of a mirror of it."""

    repo: str = Field(
        min_length=1,
        max_length=193,
        pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*(/[a-zA-Z0-9][a-zA-Z0-9._-]*)?$",
        json_schema_extra=validations(rules.NO_PARENT_SEGMENT),
    )
    """The repository, such as org/name."""
    revision: str = Field(
        default="main",
        min_length=1,
        max_length=128,
        pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_./+-]*$",
        json_schema_extra=validations(rules.NO_PARENT_SEGMENT),
    )
    """Branch, tag or commit. A branch or tag is resolved to its commit at each look."""
    path: Folder = ""
    """The adapter's folder in the repository; empty for its root."""
    endpoint: WebAddress | None = None
    """URL of a mirror of the hub."""

    @field_validator("repo", "revision")
    @classmethod
    def _has_no_parent_segment(cls, text: str) -> str:
        return _checked(text, ".." not in text, rules.NO_PARENT_SEGMENT)

    @field_validator("path")
    @classmethod
    def _path_is_relative(cls, path: str) -> str:
        return _relative(path)


class OciSource(ApiModel):
    """An OCI artifact whose layers are the adapter's files, as `oras push` makes it."""

    reference: str = Field(
        min_length=1, max_length=512, json_schema_extra=validations(rules.OCI_REFERENCE)
    )
    """registry/repository:tag or registry/repository@sha256:<digest>. A tag is resolved to its
    manifest's digest at each look; of both the digest counts."""
    plain_http: bool = False
    """Whether the registry speaks http instead of https."""

    @field_validator("reference")
    @classmethod
    def _is_reference(cls, text: str) -> str:
        return _checked(
            text, re.fullmatch(rules.OCI_PATTERN, text) is not None, rules.OCI_REFERENCE
        )


class VolumeSource(ApiModel):
    """A folder of a volume that is mounted into the operator."""

    claim_name: ObjectName
    """PersistentVolumeClaim in the adapter's namespace; the operator reads it below its volume
    root, at <root>/<namespace>/<claimName>/<path>."""
    path: Folder = ""
    """The adapter's folder in the volume, relative; empty for the volume's root."""

    @field_validator("path")
    @classmethod
    def _path_is_relative(cls, path: str) -> str:
        return _relative(path)


class PushSource(ApiModel):
    """What a trainer pushes; the operator writes these fields with each push."""

    revision: str = Field(default="", max_length=71, pattern=r"^(sha256:[0-9a-f]{64})?$")
    """The revision that is wanted; empty until the first push."""
    step: Int64 = Field(default=0, ge=0)
    """The trainer's own count at that revision."""


class AdapterSource(ApiModel):
    """Where the adapter comes from: exactly one of s3, gcs, azureBlob, http, huggingFace, oci,
    persistentVolumeClaim and push."""

    s3: S3Source | None = None
    """An S3 bucket."""
    gcs: GcsSource | None = None
    """A Google Cloud Storage bucket."""
    azure_blob: AzureBlobSource | None = None
    """An Azure Blob Storage container."""
    http: HttpSource | None = None
    """A web server."""
    hugging_face: HuggingFaceSource | None = None
    """A repository of the Hugging Face hub."""
    oci: OciSource | None = None
    """An artifact in an OCI registry."""
    persistent_volume_claim: VolumeSource | None = None
    """A volume mounted into the operator."""
    push: PushSource | None = None
    """A trainer that pushes revisions to the operator."""
    credentials_secret_ref: LocalReference | None = None
    """Secret with the source's credentials; docs/sources.md lists its keys."""
    allow_pickle: bool | None = None
    """Whether an adapter_model.bin is taken; its pickle is read, never run. Left out: volumes and
    buckets may hold one, web servers, the hub and registries may not."""
    adapter_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        json_schema_extra=validations(rules.ADAPTER_NAME, rules.PRINTABLE),
    )
    """Which adapter to take of a file that holds several: <name> in lora_A.<name>.weight."""
    poll_interval_seconds: Int32 = Field(default=60, ge=0, le=604800)
    """Seconds between looks for changed content; 0 looks only when the spec changes."""

    model_config = ConfigDict(
        json_schema_extra=validations(rules.ONE_SOURCE, rules.NEEDS_NO_SECRET)
    )

    @field_validator("adapter_name")
    @classmethod
    def _is_one_segment(cls, name: str | None) -> str | None:
        return name if name is None else _checked(name, "." not in name, rules.ADAPTER_NAME)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [
            self.s3,
            self.gcs,
            self.azure_blob,
            self.http,
            self.hugging_face,
            self.oci,
            self.persistent_volume_claim,
            self.push,
        ]
        if sum(source is not None for source in given) != 1:
            raise ValueError(rules.ONE_SOURCE.message)
        own = self.persistent_volume_claim or self.push
        if own is not None and self.credentials_secret_ref:
            raise ValueError(rules.NEEDS_NO_SECRET.message)
        return self


def _checked(text: str, holds: bool, rule: rules.Rule) -> str:
    if not holds:
        raise ValueError(rule.message)
    return text


def _relative(path: str) -> str:
    problem = names.relative_path_problem(path)
    if problem:
        raise ValueError(problem)
    return path
