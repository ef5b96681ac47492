"""A prefix of a Google Cloud Storage bucket, read through the interface that speaks XML.

That one, because a signed address works for it: with a service account's key each address is
signed here (by obstore), so that no token has to be fetched from an address that the key names.
A version is the object's generation, with its ETag.
"""

from __future__ import annotations

import json
import os
import re
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

import obstore
from lorafleet.errors import (
    AccessDenied,
    PathNotAllowed,
    SourceError,
    SourceNotFound,
    SourceUnavailable,
)
from obstore.exceptions import BaseError
from obstore.store import GCSStore

from lorafleet_operator.sources import assemble, bounds
from lorafleet_operator.sources.connection import Connection, Target
from lorafleet_operator.sources.endpoints import checked_endpoint, object_url
from lorafleet_operator.sources.remote import Reach
from lorafleet_operator.sources.remote_tree import RemoteTree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lorafleet_operator.sources.base import ResolvedAdapter
    from lorafleet_operator.sources.credentials import SecretData

GOOGLE = "https://storage.googleapis.com"
_SIGNED_HOST = {"Host": "storage.googleapis.com"}
"""What obstore signs as the host wherever the endpoint is; Google's other addresses take it."""
_SIGNED_FOR = timedelta(minutes=10)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,64})</Code>")
_ABSENT = frozenset(("", "NoSuchKey", "NotFound"))
_OF_A_KEY = ("client_email", "private_key", "private_key_id")


class GcsSource:
    """An adapter below `gs://bucket/prefix`; without a Secret it is read anonymously."""

    kind = "gcs"

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
        prefix = bounds.checked_relative_path(prefix, "source.gcs.prefix")
        self.uri = f"gs://{bucket}/{prefix}".rstrip("/")
        self._endpoint = checked_endpoint(endpoint or GOOGLE, "source.gcs.endpoint")
        self._bucket = bucket
        self._folder = f"{prefix}/" if prefix else ""
        self._secret = secret
        self._signer: GCSStore | None = None
        self._headers: dict[str, str] = {}
        if secret is not None:
            self._take(secret)
        connection = Connection(
            self.uri,
            settings,
            ca_bundle=secret.ca_bundle() if secret else None,
            ca_label=secret.label if secret else "",
            # A signature holds for one host.
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

    async def _locate(self, name: str) -> Target:
        key = f"{self._folder}{name}"
        if self._signer is None:
            return Target(object_url(self._endpoint, self._bucket, key), self._headers)
        try:
            url = await obstore.sign_async(self._signer, "GET", key, _SIGNED_FOR)
        except (BaseError, ValueError):
            url = None
        if url is None:
            # Outside of the handler: the text of the library's error may hold the address.
            raise PathNotAllowed(f"{self.uri}: no address can be made of endpoint and prefix")
        return Target(url, _SIGNED_HOST)

    def _explain(self, status: int, body: bytes, headers: Mapping[str, str]) -> SourceError | None:
        del headers
        found = _CODE.search(body)
        code = found[1].decode() if found else ""
        answer = f"{status} {code}".strip()
        if code == "NoSuchBucket":
            return SourceNotFound(f"bucket {self._bucket} does not exist ({answer})")
        if status == 404 and code in _ABSENT:
            return None
        if status in (401, 403) or code in ("ExpiredToken", "SignatureDoesNotMatch"):
            return AccessDenied(f"{answer} from {self.uri}: {self._sent(code)}")
        return SourceUnavailable(f"{answer} from {self.uri}")

    def _sent(self, code: str) -> str:
        if self._secret is None or (self._signer is None and not self._headers):
            return "no credentials configured"
        key = "serviceAccountKey" if self._signer is not None else "token"
        if code == "AccessDenied":
            return (
                f"{self._secret.label} key {key} may not read it "
                "(without storage.objects.list a missing file looks the same)"
            )
        return f"{self._secret.label} key {key} was refused"


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
