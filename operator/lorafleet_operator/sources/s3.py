"""A prefix of an S3 bucket, of Amazon's or any other server that speaks S3.

obstore (the object_store library) makes the signed address of each request; the bytes come
through `connection`, because obstore itself cannot check which address it connects to, follows
redirects wherever they lead and knows no certificate authority per source.
Everything that obstore would else take from the operator's own environment is given explicitly:
the operator's identity must never sign for a tenant.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from lorafleet.errors import PathNotAllowed, SourceNotFound
from obstore.store import S3Store

from lorafleet_operator.sources.connection import Target
from lorafleet_operator.sources.credentials import S3Credentials
from lorafleet_operator.sources.endpoints import checked_endpoint
from lorafleet_operator.sources.object_store import ObjectStoreSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lorafleet.errors import SourceError
    from obstore.store import S3Credential

    from lorafleet_operator.sources import bounds
    from lorafleet_operator.sources.credentials import SecretData

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")


class S3Source(ObjectStoreSource):
    """An adapter below `s3://bucket/prefix`."""

    kind = "s3"
    refused = frozenset(
        (
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "InvalidToken",
            "ExpiredToken",
            "XAdminUserNotFound",  # versitygw's word for an unknown access key
        )
    )

    def __init__(
        self,
        *,
        bucket: str,
        prefix: str,
        region: str | None,
        endpoint: str | None,
        path_style: bool,
        secret: SecretData | None,
        settings: bounds.SourceSettings,
        allow_pickle: bool = True,
        on_read: Callable[[int], None],
    ) -> None:
        if not _BUCKET.fullmatch(bucket) or ".." in bucket:
            raise PathNotAllowed(f"source.s3.bucket {bucket!r} is not a bucket's name")
        region = region or "us-east-1"
        if not _REGION.fullmatch(region):
            raise PathNotAllowed(f"source.s3.region {region!r} is not a region's name")
        keys = secret.s3() if secret else None
        self._sent_of = secret.label if secret and keys else None
        self._store = _store(
            bucket,
            region,
            _bucket_url(bucket, region, endpoint, path_style=path_style),
            keys or S3Credentials("anonymous", "anonymous"),
        )
        super().__init__(
            root=f"s3://{bucket}",
            bucket=f"bucket {bucket}",
            prefix=prefix,
            secret=secret,
            settings=settings,
            allow_pickle=allow_pickle,
            on_read=on_read,
        )

    async def address(self, key: str) -> Target:
        """Return the object's signed address; for nobody's keys the same without the signature."""
        url = await self.signed(self._store, key)
        return Target(url if self._sent_of else url.partition("?")[0])

    def sent(self, code: str) -> str:
        """Return what was sent for credentials and what `code` says of it, for a message."""
        if self._sent_of is None:
            return "no credentials configured"
        if code in self.refused:
            return f"the credentials of {self._sent_of} were refused"
        if code == "RequestTimeTooSkewed":
            return "the operator's clock is wrong"
        return (
            f"the credentials of {self._sent_of} may not read it "
            "(without s3:ListBucket a missing file looks the same)"
        )

    def _explain(self, status: int, body: bytes, headers: Mapping[str, str]) -> SourceError | None:
        region = headers.get("x-amz-bucket-region", "")
        if status in (301, 307, 400) and _REGION.fullmatch(region):
            answer = f"{status} {self.code(body, headers)}".strip()
            return SourceNotFound(f"{self._bucket_label} is in region {region} ({answer})")
        return super()._explain(status, body, headers)


@lru_cache(maxsize=64)
def _store(bucket: str, region: str, bucket_url: str, keys: S3Credentials) -> S3Store:
    # Kept, because making one takes 10 ms: it prepares a client of its own that we never use.
    credential: S3Credential = {
        "access_key_id": keys.access_key_id,
        "secret_access_key": keys.secret_access_key,
        "token": keys.session_token,
        "expires_at": None,
    }
    return S3Store(
        bucket,
        region=region,
        # The bucket's own URL stands for both styles of address.
        endpoint=bucket_url,
        virtual_hosted_style_request=True,
        request_payer=False,
        s3_express=False,
        skip_signature=False,
        client_options={"allow_http": True},
        # A provider, because AWS_SESSION_TOKEN of the environment would join static keys.
        credential_provider=lambda: credential,
    )


def _bucket_url(bucket: str, region: str, endpoint: str | None, *, path_style: bool) -> str:
    """Return the URL below which the bucket's keys lie."""
    if endpoint is None:
        endpoint = f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
    parts = urlsplit(checked_endpoint(endpoint, "source.s3.endpoint"))
    host = parts.hostname or ""
    # A bucket with a dot fits no wildcard certificate, an IP address has no subdomains.
    if path_style or _is_ip(host) or ("." in bucket and parts.scheme == "https"):
        path = f"{parts.path}/{bucket}"
        return urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    return urlunsplit((parts.scheme, f"{bucket}.{parts.netloc}", parts.path, "", ""))


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
