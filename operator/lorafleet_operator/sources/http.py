"""A folder of a web server, or one weights file with the config beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from lorafleet.errors import AccessDenied, PathNotAllowed, SourceError

from lorafleet_operator.sources import assemble
from lorafleet_operator.sources.connection import Connection, Target
from lorafleet_operator.sources.remote_tree import RemoteTree
from lorafleet_operator.sources.stream import Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lorafleet_operator.sources.base import ResolvedAdapter
    from lorafleet_operator.sources.bounds import SourceSettings
    from lorafleet_operator.sources.credentials import SecretData


_IN_A_PATH = "/%:@!$&'()*+,;=~"
"""Left as people wrote it: the escapes of an address are the address's own."""


class HttpSource:
    """An adapter below a URL. A query of the URL is sent with each request and never shown."""

    kind = "http"

    def __init__(
        self,
        *,
        url: str,
        secret: SecretData | None,
        settings: SourceSettings,
        allow_pickle: bool = False,
        on_read: Callable[[int], None],
    ) -> None:
        self._base, self._query, self._weights = _split(url)
        self.uri = self._base
        self._secret = secret
        authorization = secret.authorization() if secret else None
        self._headers = {"Authorization": authorization} if authorization else {}
        connection = Connection(
            self.uri,
            settings,
            ca_bundle=secret.ca_bundle() if secret else None,
            ca_label=secret.label if secret else "",
        )
        self._tree = RemoteTree(
            Reach(connection, settings, self._explain, on_read), self.uri, self._locate
        )
        self._settings = settings
        self._allow_pickle = allow_pickle

    async def resolve(self) -> ResolvedAdapter:
        """Read header and config of what the server has now."""
        return await assemble.resolve(
            self._tree,
            self._settings,
            allow_pickle=self._allow_pickle,
            weights_name=self._weights,
            query=self._query,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._tree.aclose()

    async def _locate(self, name: str) -> Target:
        return Target(f"{self._base}/{quote(name)}{self._query}", self._headers)

    def _explain(self, status: int, body: bytes, headers: Mapping[str, str]) -> SourceError | None:
        del body, headers
        if status not in (401, 403, 407):
            return None
        if self._headers and self._secret is not None:
            sent = f"{self._secret.label} key {self._secret.authorization_key()} was sent"
        else:
            sent = "no credentials configured"
        return AccessDenied(f"{status} from {self.uri}: {sent}")


def _split(url: str) -> tuple[str, str, str]:
    """Return the folder's URL without query, the query with its `?`, the weights' file name."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise PathNotAllowed("source.http.url is not an http or https URL")
    if "@" in parts.netloc:
        raise PathNotAllowed(
            "source.http.url: user and password in a URL are not allowed; use credentialsSecretRef"
        )
    folder, weights = assemble.named_file(parts.path.rstrip("/"))
    if not url.isprintable() or ".." in folder.split("/"):
        raise PathNotAllowed("source.http.url has '..' or a control character")
    base = urlunsplit((parts.scheme, parts.netloc, quote(folder, safe=_IN_A_PATH), "", ""))
    query = quote(parts.query, safe=f"{_IN_A_PATH}?")
    return base, f"?{query}" if query else "", unquote(weights)
