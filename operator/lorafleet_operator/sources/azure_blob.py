"""A prefix of an Azure Blob Storage container.

An account's key signs each address for ten minutes; a shared access signature or a bearer token
of the Secret is sent as it is. A version is the blob's ETag.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lorafleet.errors import PathNotAllowed

from lorafleet_operator.sources.azure_keys import azure_keys
from lorafleet_operator.sources.azure_sas import VERSION, blob_sas
from lorafleet_operator.sources.connection import Target
from lorafleet_operator.sources.endpoints import checked_endpoint, object_url
from lorafleet_operator.sources.object_store import SIGNED_FOR, ObjectStoreSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lorafleet_operator.sources import bounds
    from lorafleet_operator.sources.credentials import SecretData

_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"\$?[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_ERROR_CODE = re.compile(r"[A-Za-z]{1,64}")


class AzureBlobSource(ObjectStoreSource):
    """An adapter below `az://account/container/prefix`."""

    kind = "azureBlob"
    no_bucket = "ContainerNotFound"
    no_object = frozenset()  # whatever else is not found

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
        self._endpoint = checked_endpoint(
            endpoint or f"https://{account}.blob.core.windows.net", "source.azureBlob.endpoint"
        )
        self._account, self._container = account, container
        self._secret = secret
        self._keys = azure_keys(secret, account)
        super().__init__(
            root=f"az://{account}/{container}",
            bucket=f"container {container} of account {account}",
            prefix=prefix,
            secret=secret,
            settings=settings,
            allow_pickle=allow_pickle,
            on_read=on_read,
        )

    async def address(self, key: str) -> Target:
        """Return the blob's address: signed, or with what the Secret holds."""
        # The interface's version: bearer tokens are not taken without one.
        headers = {"x-ms-version": VERSION}
        keys = self._keys
        query = keys.sas
        if keys.account_key is not None:
            until = datetime.now(UTC) + SIGNED_FOR
            query = blob_sas(self._account, keys.account_key, self._container, key, until)
        if keys.token:
            headers["Authorization"] = f"Bearer {keys.token}"
        url = object_url(self._endpoint, self._container, key)
        return Target(f"{url}?{query}" if query else url, headers)

    def sent(self, code: str) -> str:
        """Return what was sent for credentials, for a message."""
        del code
        if self._secret is None or not self._keys.name:
            return "no credentials configured"
        return f"{self._secret.label} key {self._keys.name} was refused or may not read it"

    def code(self, body: bytes, headers: Mapping[str, str]) -> str:
        """Return the error code of an answer, "" if there is none."""
        del body
        code = headers.get("x-ms-error-code", "")
        return code if _ERROR_CODE.fullmatch(code) else ""

    def is_denied(self, status: int, code: str) -> bool:
        """Return whether the answer is about credentials."""
        # To those who send nothing a private container looks like one that does not exist.
        hidden = code in ("ResourceNotFound", "PublicAccessNotPermitted") and not self._keys.name
        return super().is_denied(status, code) or hidden
