"""From a spec's `source` to the provider that reads it: the one match statement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lorafleet.errors import PathNotAllowed

from lorafleet_operator.sources.azure_blob import AzureBlobSource
from lorafleet_operator.sources.credentials import SecretData, read_secret
from lorafleet_operator.sources.gcs import GcsSource
from lorafleet_operator.sources.http import HttpSource
from lorafleet_operator.sources.hugging_face import HuggingFaceSource
from lorafleet_operator.sources.oci import OciSource
from lorafleet_operator.sources.pushed import PushedSource
from lorafleet_operator.sources.s3 import S3Source
from lorafleet_operator.sources.volume import VolumeSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from lorafleet_operator.sources.base import Source
    from lorafleet_operator.sources.bounds import SourceSettings

_KINDS = ("s3", "gcs", "azureBlob", "http", "huggingFace", "oci", "persistentVolumeClaim", "push")


def open_source(
    source: Mapping[str, Any] | Any,
    *,
    namespace: str,
    name: str,
    settings: SourceSettings,
    secret: Mapping[str, bytes] | SecretData | None,
    on_read: Callable[[int], None] = lambda count: None,
) -> Source:
    """Return the source that `spec.source` describes; opens no connection.

    `source` is the API model or its camelCase mapping: exactly one of `s3`, `gcs`, `azureBlob`,
    `http`, `huggingFace`, `oci`, `persistentVolumeClaim` and `push`, and maybe
    `credentialsSecretRef: {name}` and `allowPickle`.
    `namespace` and `name` are the adapter's. `secret` is the decoded data of the referenced
    Secret, None if there is none; without a reference the source is read anonymously. Credentials
    that come from no Secret are given as SecretData, with a label of their own.
    `on_read` is called with the number of bytes each time some arrived from the source.
    Raises `PathNotAllowed` for an address that the bounds forbid, `AccessDenied` for a Secret
    that is missing or lacks a key.
    """
    spec = _as_mapping(source)
    reference = (spec.get("credentialsSecretRef") or {}).get("name")
    if isinstance(secret, SecretData):
        keys: SecretData | None = secret
    else:
        keys = read_secret(reference, secret, namespace)
    given = {key: spec[key] for key in _KINDS if spec.get(key)}
    pickle = spec.get("allowPickle")
    match given:
        case {"s3": s3, **others} if not others:
            return S3Source(
                bucket=s3["bucket"],
                prefix=s3.get("prefix") or "",
                region=s3.get("region"),
                endpoint=s3.get("endpoint"),
                path_style=bool(s3.get("pathStyle")),
                secret=keys,
                settings=settings,
                allow_pickle=True if pickle is None else bool(pickle),
                on_read=on_read,
            )
        case {"gcs": gcs, **others} if not others:
            return GcsSource(
                bucket=gcs["bucket"],
                prefix=gcs.get("prefix") or "",
                endpoint=gcs.get("endpoint"),
                secret=keys,
                settings=settings,
                allow_pickle=True if pickle is None else bool(pickle),
                on_read=on_read,
            )
        case {"azureBlob": azure, **others} if not others:
            return AzureBlobSource(
                account=azure["account"],
                container=azure["container"],
                prefix=azure.get("prefix") or "",
                endpoint=azure.get("endpoint"),
                secret=keys,
                settings=settings,
                allow_pickle=True if pickle is None else bool(pickle),
                on_read=on_read,
            )
        case {"oci": oci, **others} if not others:
            return OciSource(
                reference=oci["reference"],
                plain_http=bool(oci.get("plainHttp")),
                secret=keys,
                settings=settings,
                allow_pickle=bool(pickle),
                on_read=on_read,
            )
        case {"http": http, **others} if not others:
            return HttpSource(
                url=http["url"],
                secret=keys,
                settings=settings,
                allow_pickle=bool(pickle),
                on_read=on_read,
            )
        case {"persistentVolumeClaim": claim, **others} if not others:
            return VolumeSource(
                volume_root=settings.volume_root,
                namespace=namespace,
                claim=claim["claimName"],
                path=claim.get("path") or "",
                settings=settings,
                allow_pickle=True if pickle is None else bool(pickle),
                on_read=on_read,
            )
        case {"push": push, **others} if not others:
            return PushedSource(
                root=settings.push_root,
                namespace=namespace,
                name=name,
                revision=push.get("revision") or "",
                on_read=on_read,
            )
        case {"huggingFace": hub, **others} if not others:
            return HuggingFaceSource(
                repo=hub["repo"],
                revision=hub.get("revision") or "main",
                path=hub.get("path") or "",
                endpoint=hub.get("endpoint"),
                secret=keys,
                settings=settings,
                allow_pickle=bool(pickle),
                on_read=on_read,
            )
        case _:
            found = ", ".join(given) or "none"
            raise PathNotAllowed(
                f"{namespace}/{name}: spec.source needs exactly one of {', '.join(_KINDS)}, "
                f"found {found}"
            )


def _as_mapping(source: Mapping[str, Any] | Any) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    # An API model: the same keys by their names in the manifest.
    dumped: Mapping[str, Any] = source.model_dump(by_alias=True, exclude_none=True)
    return dumped
