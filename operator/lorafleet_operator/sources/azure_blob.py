"""A prefix of an Azure Blob Storage container.

An account's key signs each address for ten minutes; a shared access signature or a bearer token
of the Secret is sent as it is. A version is the blob's ETag.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lorafleet.errors import (
    AccessDenied,
    PathNotAllowed,
    SourceError,
    SourceNotFound,
    SourceUnavailable,
)

from lorafleet_operator.sources import assemble, bounds
from lorafleet_operator.sources.azure_sas import VERSION, blob_sas
from lorafleet_operator.sources.connection import Connection, Target
from lorafleet_operator.sources.endpoints import checked_endpoint, object_url
from lorafleet_operator.sources.remote import Reach
from lorafleet_operator.sources.remote_tree import RemoteTree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lorafleet_operator.sources.base import ResolvedAdapter
    from lorafleet_operator.sources.credentials import SecretData

_SIGNED_FOR = timedelta(minutes=10)
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"\$?[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_ERROR_CODE = re.compile(r"[A-Za-z]{1,64}")
_SAS = re.compile(r"[A-Za-z0-9%&=._~:/+,;-]*\bsig=[A-Za-z0-9%&=._~:/+,;-]+")
_VERSION = {"x-ms-version": VERSION}
"""The interface's version: bearer tokens are not taken without one."""


class AzureBlobSource:
    """An adapter below `az://account/container/prefix`; without a Secret read anonymously."""

    kind = "azureBlob"

    def __init__(
        self,
        *,
        account: str,
        container: str,
        prefix: str,
        endpoint: str | None,
        secret: SecretData | None,
        settings: bounds.SourceSettings,
        allow_pickle: bool = True,
        on_read: Callable[[int], None],
    ) -> None:
        if not _ACCOUNT.fullmatch(account):
            raise PathNotAllowed(f"source.azureBlob.account {account!r} is not an account's name")
        if not _CONTAINER.fullmatch(container):
            raise PathNotAllowed(
                f"source.azureBlob.container {container!r} is not a container's name"
            )
        prefix = bounds.checked_relative_path(prefix, "source.azureBlob.prefix")
        self.uri = f"az://{account}/{container}/{prefix}".rstrip("/")
        self._endpoint = checked_endpoint(
            endpoint or f"https://{account}.blob.core.windows.net", "source.azureBlob.endpoint"
        )
        self._account, self._container = account, container
        self._folder = f"{prefix}/" if prefix else ""
        self._secret = secret
        self._sent_key = ""
        self._key: bytes | None = None
        self._query = ""
        self._headers = dict(_VERSION)
        if secret is not None:
            self._take(secret)
        connection = Connection(
            self.uri,
            settings,
            ca_bundle=secret.ca_bundle() if secret else None,
            ca_label=secret.label if secret else "",
            follow_redirects=False,
        )
        self._tree = RemoteTree(
            Reach(connection, settings, self._explain, on_read), self.uri, self._locate
        )
        self._settings = settings
        self._allow_pickle = allow_pickle

    async def resolve(self) -> ResolvedAdapter:
        """Read header and config of what the container holds now."""
        return await assemble.resolve(self._tree, self._settings, allow_pickle=self._allow_pickle)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._tree.aclose()

    def _take(self, secret: SecretData) -> None:
        if (key := secret.get("accountKey")) is not None:
            self._sent_key = "accountKey"
            self._key = _decoded(key, secret.label)
        elif (sas := secret.get("sasToken")) is not None:
            self._sent_key = "sasToken"
            self._query = "?" + _checked_sas(sas, secret.label)
        elif (token := secret.get("token")) is not None:
            self._sent_key = "token"
            self._headers["Authorization"] = f"Bearer {token}"
        elif secret.ca_bundle() is None:
            raise secret.lacks("accountKey", "sasToken", "token")

    async def _locate(self, name: str) -> Target:
        blob, query = f"{self._folder}{name}", self._query
        if self._key is not None:
            until = datetime.now(UTC) + _SIGNED_FOR
            query = "?" + blob_sas(self._account, self._key, self._container, blob, until)
        return Target(object_url(self._endpoint, self._container, blob) + query, self._headers)

    def _explain(self, status: int, body: bytes, headers: Mapping[str, str]) -> SourceError | None:
        del body
        code = headers.get("x-ms-error-code", "")
        code = code if _ERROR_CODE.fullmatch(code) else ""
        answer = f"{status} {code}".strip()
        if code == "ContainerNotFound":
            return SourceNotFound(
                f"container {self._container} of account {self._account} does not exist ({answer})"
            )
        # To those who send nothing a private container looks like one that does not exist.
        hidden = code in ("ResourceNotFound", "PublicAccessNotPermitted") and not self._sent_key
        if status in (401, 403) or hidden:
            return AccessDenied(f"{answer} from {self.uri}: {self._sent()}")
        if status == 404:
            return None
        return SourceUnavailable(f"{answer} from {self.uri}")

    def _sent(self) -> str:
        if self._secret is None or not self._sent_key:
            return "no credentials configured"
        return f"{self._secret.label} key {self._sent_key} was refused or may not read it"


def _decoded(key: str, label: str) -> bytes:
    try:
        return base64.b64decode(key, validate=True)
    except ValueError:
        pass
    # Outside of the handler: the exception there holds the value.
    raise AccessDenied(f"{label} key accountKey is not base64, as account keys are")


def _checked_sas(sas: str, label: str) -> str:
    sas = sas.removeprefix("?")
    if not _SAS.fullmatch(sas):
        raise AccessDenied(f"{label} key sasToken is not a shared access signature (sv=..&sig=..)")
    return sas
