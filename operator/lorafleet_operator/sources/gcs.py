"""A prefix of a Google Cloud Storage bucket, read through the interface that speaks XML.

That one, because a signed address works for it: with a service account's key each address is
signed here (by obstore), so that no token has to be fetched from an address that the key names.
A version is the object's generation, with its ETag.
"""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from lorafleet.errors import AccessDenied, PathNotAllowed
from obstore.exceptions import BaseError
from obstore.store import GCSStore

from lorafleet_operator.sources.connection import Target
from lorafleet_operator.sources.endpoints import checked_endpoint, object_url
from lorafleet_operator.sources.object_store import ObjectStoreSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from lorafleet_operator.sources import bounds
    from lorafleet_operator.sources.credentials import SecretData

GOOGLE = "https://storage.googleapis.com"
_SIGNED_HOST = {"Host": "storage.googleapis.com"}
"""What obstore signs as the host wherever the endpoint is; Google's other addresses take it."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_OF_A_KEY = ("client_email", "private_key", "private_key_id")


class GcsSource(ObjectStoreSource):
    """An adapter below `gs://bucket/prefix`."""

    kind = "gcs"
    refused = frozenset(("ExpiredToken", "SignatureDoesNotMatch"))

    def __init__(
        self,
        *,
        bucket: str,
        prefix: str,
        endpoint: str | None,
        secret: SecretData | None,
        settings: bounds.SourceSettings,
        allow_pickle: bool = True,
        on_read: Callable[[int], None],
    ) -> None:
        if not _BUCKET.fullmatch(bucket) or ".." in bucket:
            raise PathNotAllowed(f"source.gcs.bucket {bucket!r} is not a bucket's name")
        self._endpoint = checked_endpoint(endpoint or GOOGLE, "source.gcs.endpoint")
        self._bucket = bucket
        self._secret = secret
        self._signer: GCSStore | None = None
        self._headers: dict[str, str] = {}
        if secret is not None:
            self._take(secret)
        super().__init__(
            root=f"gs://{bucket}",
            bucket=f"bucket {bucket}",
            prefix=prefix,
            secret=secret,
            settings=settings,
            allow_pickle=allow_pickle,
            on_read=on_read,
        )

    async def address(self, key: str) -> Target:
        """Return the object's address: signed, or with a token, or plain."""
        if self._signer is None:
            return Target(object_url(self._endpoint, self._bucket, key), self._headers)
        # obstore takes it as a part of a URL: what is not escaped there is not escaped by it.
        return Target(await self.signed(self._signer, quote(key)), _SIGNED_HOST)

    def sent(self, code: str) -> str:
        """Return what was sent for credentials and what `code` says of it, for a message."""
        if self._secret is None or (self._signer is None and not self._headers):
            return "no credentials configured"
        key = "serviceAccountKey" if self._signer is not None else "token"
        if code == "AccessDenied":
            return (
                f"{self._secret.label} key {key} may not read it "
                "(without storage.objects.list a missing file looks the same)"
            )
        return f"{self._secret.label} key {key} was refused"

    def _take(self, secret: SecretData) -> None:
        key, token = secret.get("serviceAccountKey"), secret.get("token")
        if key is not None:
            _check_environment(secret.label)
            self._signer = _signer(self._bucket, self._endpoint, _checked_key(key, secret.label))
            if self._signer is None:
                raise _no_key(secret.label)
        elif token is not None:
            self._headers = {"Authorization": f"Bearer {token}"}
        elif secret.ca_bundle() is None:
            raise secret.lacks("serviceAccountKey", "token")


def _checked_key(text: str, label: str) -> str:
    """Return what signing needs of a service account's key, and nothing else of it.

    A key may also name addresses to fetch tokens from and switch signing off.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("type") != "service_account":
        raise _no_key(label)
    parts = {name: found.get(name) for name in _OF_A_KEY}
    if not all(isinstance(value, str) and value for value in parts.values()):
        raise _no_key(label)
    return json.dumps(parts)


def _check_environment(label: str) -> None:
    for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"):
        if name in os.environ:
            raise AccessDenied(
                f"{label} key serviceAccountKey cannot sign while the operator's own environment "
                f"sets {name}; take it out there"
            )


def _no_key(label: str) -> AccessDenied:
    return AccessDenied(f"{label} key serviceAccountKey holds no service account key in JSON")


@lru_cache(maxsize=64)
def _signer(bucket: str, endpoint: str, key: str) -> GCSStore | None:
    """Return what signs with the key, None if the key cannot be used.

    Kept, because making one takes long; its own client is never used. What is not given here
    would come from the operator's environment: its identity must never sign for a tenant.
    """
    try:
        return GCSStore(
            bucket,
            service_account_key=key,
            base_url=endpoint,
            skip_signature=False,
            client_options={"allow_http": True},
        )
    except (BaseError, ValueError):
        return None
