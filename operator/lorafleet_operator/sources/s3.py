"""A prefix of an S3 bucket, of Amazon's or any other server that speaks S3.

obstore (the object_store library) makes the signed address of each request; the bytes come
through `connection`, because obstore itself cannot check which address it connects to, follows
redirects wherever they lead and knows no certificate authority per source.
Everything that obstore would else take from the operator's own environment is given explicitly:
the operator's identity must never sign for a tenant.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import obstore
from lorafleet.errors import (
    AccessDenied,
    PathNotAllowed,
    SourceError,
    SourceNotFound,
    SourceUnavailable,
)
from obstore.exceptions import BaseError
from obstore.store import S3Store

from lorafleet_operator.sources import assemble, bounds
from lorafleet_operator.sources.connection import Connection, Target
from lorafleet_operator.sources.credentials import S3Credentials
from lorafleet_operator.sources.remote import Reach
from lorafleet_operator.sources.remote_tree import RemoteTree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from obstore.store import S3Credential

    from lorafleet_operator.sources.base import ResolvedAdapter
    from lorafleet_operator.sources.credentials import SecretData

_SIGNED_FOR = timedelta(minutes=10)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")
_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,64})</Code>")
_BAD_CREDENTIALS = frozenset(
    (
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "InvalidToken",
        "ExpiredToken",
        "XAdminUserNotFound",  # versitygw's word for an unknown access key
    )
)
_ABSENT = frozenset(("", "NoSuchKey", "NotFound"))


class S3Source:
    """An adapter below `s3://bucket/prefix`; without a Secret it is read anonymously."""

    kind = "s3"

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
        prefix = bounds.checked_relative_path(prefix, "source.s3.prefix")
        self.uri = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._secret = secret
        self._signed = secret is not None
        self._folder = f"{prefix}/" if prefix else ""
        self._store = _store(
            bucket,
            region,
            _bucket_url(bucket, region, endpoint, path_style=path_style),
            secret.s3() if secret else S3Credentials("anonymous", "anonymous"),
        )
        connection = Connection(
            self.uri,
            settings,
            ca_bundle=secret.ca_bundle() if secret else None,
            ca_label=secret.label if secret else "",
            # A signature holds for one host; S3 redirects only what has the wrong region.
            follow_redirects=False,
        )
        self._tree = RemoteTree(
            Reach(connection, settings, self._explain, on_read), self.uri, self._locate
        )
        self._settings = settings
        self._allow_pickle = allow_pickle

    async def resolve(self) -> ResolvedAdapter:
        """Read header and config of what the bucket holds now."""
        return await assemble.resolve(self._tree, self._settings, allow_pickle=self._allow_pickle)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._tree.aclose()

    async def _locate(self, name: str) -> Target:
        try:
            url = await obstore.sign_async(self._store, "GET", f"{self._folder}{name}", _SIGNED_FOR)
        except (BaseError, ValueError):
            url = None
        if url is None:
            # Outside of the handler: the text of the library's error may hold the address.
            raise PathNotAllowed(f"{self.uri}: no address can be made of endpoint and prefix")
        if self._signed:
            return Target(url)
        # Anonymous: the address that the library made, without the signature.
        parts = urlsplit(url)
        return Target(urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")))

    def _explain(self, status: int, body: bytes, headers: Mapping[str, str]) -> SourceError | None:
        found = _CODE.search(body)
        code = found[1].decode() if found else ""
        answer = f"{status} {code}".strip()
        if code == "NoSuchBucket":
            return SourceNotFound(f"bucket {self._bucket} does not exist ({answer})")
        if status == 404 and code in _ABSENT:
            return None
        region = headers.get("x-amz-bucket-region", "")
        if status in (301, 307, 400) and _REGION.fullmatch(region):
            return SourceNotFound(f"bucket {self._bucket} is in region {region} ({answer})")
        if status in (401, 403) or code in _BAD_CREDENTIALS:
            return AccessDenied(f"{answer} from {self.uri}: {self._sent(code)}")
        return SourceUnavailable(f"{answer} from {self.uri}")

    def _sent(self, code: str) -> str:
        if self._secret is None:
            return "no credentials configured"
        if code in _BAD_CREDENTIALS:
            return f"the credentials of {self._secret.label} were refused"
        if code == "RequestTimeTooSkewed":
            return "the operator's clock is wrong"
        return (
            f"the credentials of {self._secret.label} may not read it "
            "(without s3:ListBucket a missing file looks the same)"
        )


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
        endpoint = f"https://s3.{region}.amazonaws.com"
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise PathNotAllowed("source.s3.endpoint is not an http or https URL")
    if "@" in parts.netloc:
        raise PathNotAllowed("source.s3.endpoint: user and password in a URL are not allowed")
    # A bucket with a dot fits no wildcard certificate, an IP address has no subdomains.
    if path_style or _is_ip(host) or ("." in bucket and parts.scheme == "https"):
        path = f"{parts.path.rstrip('/')}/{bucket}"
        return urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    return urlunsplit((parts.scheme, f"{bucket}.{parts.netloc}", parts.path.rstrip("/"), "", ""))


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
