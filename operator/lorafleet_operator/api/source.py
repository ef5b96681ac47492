"""`spec.source`: where an adapter's files are."""

from typing import Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from . import names, rules
from .fields import Int32, LocalReference, ObjectName
from .meta import ApiModel
from .rules import validations


class S3Source(ApiModel):
    """A prefix of a bucket that holds adapter_config.json and adapter_model.safetensors."""

    bucket: str = Field(min_length=3, max_length=255, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*$")
    """Name of the bucket."""
    prefix: str = Field(
        default="",
        max_length=1024,
        json_schema_extra=validations(rules.RELATIVE_PATH, rules.PRINTABLE),
    )
    """The adapter's folder in the bucket; empty for the bucket's root."""
    region: str | None = Field(default=None, max_length=64, pattern=r"^[a-zA-Z0-9-]+$")
    """Region of the bucket."""
    endpoint: str | None = Field(
        default=None,
        max_length=2048,
        json_schema_extra=validations(rules.HTTP_URL, rules.NO_USER_IN_URL),
    )
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


class VolumeSource(ApiModel):
    """A folder of a volume that is mounted into the operator."""

    claim_name: ObjectName
    """PersistentVolumeClaim in the adapter's namespace; the operator reads it below its volume
    root, at <root>/<namespace>/<claimName>/<path>."""
    path: str = Field(
        default="",
        max_length=1024,
        json_schema_extra=validations(rules.RELATIVE_PATH, rules.PRINTABLE),
    )
    """The adapter's folder in the volume, relative; empty for the volume's root."""

    @field_validator("path")
    @classmethod
    def _path_is_relative(cls, path: str) -> str:
        return _relative(path)


class AdapterSource(ApiModel):
    """Where the adapter comes from: exactly one of s3, http and persistentVolumeClaim."""

    s3: S3Source | None = None
    """An S3 bucket."""
    http: HttpSource | None = None
    """A web server."""
    persistent_volume_claim: VolumeSource | None = None
    """A volume mounted into the operator."""
    credentials_secret_ref: LocalReference | None = None
    """Secret with the source's credentials; docs/sources.md lists its keys."""
    poll_interval_seconds: Int32 = Field(default=60, ge=0, le=604800)
    """Seconds between looks for changed content; 0 looks only when the spec changes."""

    model_config = ConfigDict(
        json_schema_extra=validations(rules.ONE_SOURCE, rules.VOLUME_NEEDS_NO_SECRET)
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [self.s3, self.http, self.persistent_volume_claim]
        if sum(source is not None for source in given) != 1:
            raise ValueError(rules.ONE_SOURCE.message)
        if self.persistent_volume_claim and self.credentials_secret_ref:
            raise ValueError(rules.VOLUME_NEEDS_NO_SECRET.message)
        return self


def _relative(path: str) -> str:
    problem = names.relative_path_problem(path)
    if problem:
        raise ValueError(problem)
    return path
