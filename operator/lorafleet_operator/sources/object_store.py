"""What all stores of objects have in common: a bucket, a prefix, and one address for each object.

A kind adds its own names, credentials and error codes. The addresses are signed here, by obstore
where that does it right; the bytes come through `connection` (docs/sources.md says why).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

import obstore
from lorafleet.errors import AccessDenied, PathNotAllowed, SourceNotFound, SourceUnavailable
from obstore.exceptions import BaseError

from lorafleet_operator.sources import assemble, bounds
from lorafleet_operator.sources.connection import Connection, Target
from lorafleet_operator.sources.remote_tree import RemoteTree
from lorafleet_operator.sources.stream import Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lorafleet.errors import SourceError
    from obstore.store import GCSStore, S3Store

    from lorafleet_operator.sources.base import ResolvedAdapter
    from lorafleet_operator.sources.credentials import SecretData

SIGNED_FOR = timedelta(minutes=10)
"""How long an address is good for; each request has its own."""
_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,64})</Code>")


class ObjectStoreSource(ABC):
    """An adapter below a prefix of a bucket; without a Secret it is read anonymously.

    A prefix that names a weights file means that file and the config beside it.
    """

    kind: ClassVar[str]
    no_bucket: ClassVar[str] = "NoSuchBucket"
    """Code of an answer that there is no such bucket."""
    no_object: ClassVar[frozenset[str]] = frozenset(("", "NoSuchKey", "NotFound"))
    """Codes with which status 404 means that the object alone is missing."""
    refused: ClassVar[frozenset[str]] = frozenset()
    """Codes of credentials that are no good, whatever the status."""

    def __init__(
        self,
        *,
        root: str,
        bucket: str,
        prefix: str,
        secret: SecretData | None,
        settings: bounds.SourceSettings,
        allow_pickle: bool,
        on_read: Callable[[int], None],
    ) -> None:
        """`root` is the bucket's URI for people, `bucket` what messages call it."""
        prefix, self._weights = assemble.named_file(
            bounds.checked_relative_path(prefix, f"source.{self.kind}.prefix")
        )
        self.uri = f"{root}/{prefix}".rstrip("/")
        self._folder = f"{prefix}/" if prefix else ""
        self._bucket_label = bucket
        self._settings = settings
        self._allow_pickle = allow_pickle
        connection = Connection(
            self.uri,
            settings,
            ca_bundle=secret.ca_bundle() if secret else None,
            ca_label=secret.label if secret else "",
            # A signature holds for one host; none of these stores redirects what is asked rightly.
            follow_redirects=False,
        )
        self._tree = RemoteTree(
            Reach(connection, settings, self._explain, on_read), self.uri, self._locate
        )

    async def resolve(self) -> ResolvedAdapter:
        """Read header and config of what the bucket holds now."""
        return await assemble.resolve(
            self._tree,
            self._settings,
            allow_pickle=self._allow_pickle,
            weights_name=self._weights,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._tree.aclose()

    @abstractmethod
    async def address(self, key: str) -> Target:
        """Return where the object is read, with what lets us in."""

    @abstractmethod
    def sent(self, code: str) -> str:
        """Return what was sent for credentials and what `code` says of it, for a message."""

    def code(self, body: bytes, headers: Mapping[str, str]) -> str:
        """Return the error code of an answer, "" if there is none."""
        del headers
        found = _CODE.search(body)
        return found[1].decode() if found else ""

    def is_denied(self, status: int, code: str) -> bool:
        """Return whether the answer is about credentials."""
        return status in (401, 403) or code in self.refused

    async def signed(self, store: S3Store | GCSStore, key: str) -> str:
        """Return the address of the object, signed by obstore."""
        try:
            return await obstore.sign_async(store, "GET", key, SIGNED_FOR)
        except (BaseError, ValueError):
            pass
        # Outside of the handler: the text of the library's error may hold the address.
        raise PathNotAllowed(f"{self.uri}: no address can be made of endpoint and prefix")

    async def _locate(self, name: str) -> Target:
        return await self.address(f"{self._folder}{name}")

    def _explain(self, status: int, body: bytes, headers: Mapping[str, str]) -> SourceError | None:
        code = self.code(body, headers)
        answer = f"{status} {code}".strip()
        if code == self.no_bucket:
            return SourceNotFound(f"{self._bucket_label} does not exist ({answer})")
        if self.is_denied(status, code):
            return AccessDenied(f"{answer} from {self.uri}: {self.sent(code)}")
        if status == 404 and (not self.no_object or code in self.no_object):
            return None
        return SourceUnavailable(f"{answer} from {self.uri}")
