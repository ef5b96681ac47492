"""How a registry lets us in: asked once, answered with nothing, a password or a token.

A registry that wants tokens names the address that gives them (its `realm`). That address is
held to the same bounds as any other, must be https if the registry is, and is sent the Secret's
password: so does every client of registries.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from lorafleet.errors import AccessDenied, PathNotAllowed, SourceUnavailable

from lorafleet_operator.sources.connection import Connection, Target

if TYPE_CHECKING:
    import aiohttp

    from lorafleet_operator.sources.credentials import SecretData

_PARAMETER = re.compile(r'([a-zA-Z_]+)="([^"]{0,2048})"')
_MAX_ANSWER_BYTES = 1 << 20
_LIFE_S = 60.0
"""Seconds that a token lives if its giver does not say, as the protocol has it."""
_MARGIN_S = 10.0


class RegistryAccess:
    """The Authorization header for one repository, made when first asked for and renewed."""

    def __init__(
        self,
        connection: Connection,
        base: str,
        repository: str,
        secret: SecretData | None,
    ) -> None:
        self._connection = connection
        self._base = base
        self._repository = repository
        self._secret = secret
        self._given = None if secret is None else _given(secret, urlsplit(base).netloc)
        self._realm: str | None = None
        self._headers: dict[str, str] | None = None
        self._until: float | None = None
        self._lock = asyncio.Lock()

    def sent(self) -> str:
        """Return what was sent, for a message."""
        if self._given is None or self._secret is None:
            return "no credentials configured"
        return f"the credentials of {self._secret.label} were sent"

    async def headers(self) -> dict[str, str]:
        """Return the headers that let us in. Raises `AccessDenied` if no token is given."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._headers is None or (self._until is not None and now >= self._until):
                self._headers = await self._made()
            return self._headers

    async def _made(self) -> dict[str, str]:
        if self._given is not None and self._given.startswith("Bearer "):
            return {"Authorization": self._given}
        if self._realm is None:
            self._realm = await self._asked()
        if self._realm:
            return {"Authorization": f"Bearer {await self._token(self._realm)}"}
        return {"Authorization": self._given} if self._given else {}

    async def _asked(self) -> str:
        """Return the address that gives tokens, "" if the registry wants none."""
        status, challenges, _ = await self._get(Target(f"{self._base}/v2/"))
        if status != 401:
            return ""
        bearer = next((text for text in challenges if text.lower().startswith("bearer ")), None)
        if bearer is None:
            return ""
        parameters = dict(_PARAMETER.findall(bearer))
        realm = parameters.get("realm", "")
        try:
            parts = urlsplit(realm)
        except ValueError:
            parts = urlsplit("")
        secure = self._base.startswith("https:")
        if parts.scheme not in (("https",) if secure else ("http", "https")) or parts.fragment:
            raise PathNotAllowed(
                f"{self._connection.where}: the registry names no {'https ' if secure else ''}"
                "address for tokens"
            )
        query = {"scope": f"repository:{self._repository}:pull"}
        if "service" in parameters:
            query["service"] = parameters["service"]
        return f"{realm}{'&' if parts.query else '?'}{urlencode(query)}"

    async def _token(self, realm: str) -> str:
        headers = {"Authorization": self._given} if self._given else {}
        status, _, body = await self._get(Target(realm, headers))
        where = self._connection.where
        if status in (400, 401, 403):
            raise AccessDenied(
                f"{status} from {urlsplit(realm).netloc} for a token for {where}: {self.sent()}"
            )
        try:
            answer = json.loads(body) if status == 200 else None
        except (ValueError, RecursionError):
            answer = None
        answer = answer if isinstance(answer, dict) else {}
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise SourceUnavailable(
                f"{where}: {urlsplit(realm).netloc} gave no token (HTTP status {status})"
            )
        life = answer.get("expires_in")
        life = float(life) if isinstance(life, int) and 0 < life < 1 << 31 else _LIFE_S
        self._until = asyncio.get_running_loop().time() + max(life - _MARGIN_S, life / 2)
        return token

    async def _get(self, target: Target) -> tuple[int, list[str], bytes]:
        # Tried once: whoever asks for headers does it within tries and a time of its own.
        response = await self._connection.get(target, {})
        try:
            if response.status >= 500 or response.status == 429:
                raise SourceUnavailable(f"{self._connection.where}: HTTP status {response.status}")
            challenges = response.headers.getall("WWW-Authenticate", [])
            return response.status, challenges, await self._body(response)
        finally:
            response.close()

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = b""
        while chunk := await self._connection.next_bytes(response):
            body += chunk
            if len(body) > _MAX_ANSWER_BYTES:
                raise SourceUnavailable(f"{self._connection.where}: the answer does not end")
        return body


def _given(secret: SecretData, registry: str) -> str | None:
    """Return the Authorization that the Secret is good for; None if it has a caBundle alone."""
    config = secret.get("dockerConfig")
    if config is None:
        return secret.authorization()
    try:
        entries = json.loads(config)["auths"]
        found = {_host(name): entry for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found = None
    if found is None:
        raise AccessDenied(f"{secret.label}: its Docker config has no table auths")
    entry = found.get(registry)
    pair = _pair(entry) if isinstance(entry, dict) else None
    if pair is None:
        raise AccessDenied(f"{secret.label}: its Docker config has no password for {registry}")
    return f"Basic {pair}"


def _pair(entry: dict[str, Any]) -> str | None:
    auth, username, password = (entry.get(key) for key in ("auth", "username", "password"))
    if isinstance(auth, str) and auth.isascii() and auth.isprintable() and auth:
        return auth
    if isinstance(username, str) and isinstance(password, str):
        return base64.b64encode(f"{username}:{password}".encode()).decode()
    return None


def _host(name: str) -> str:
    host = name.removeprefix("https://").removeprefix("http://").partition("/")[0]
    return "registry-1.docker.io" if host in ("index.docker.io", "docker.io") else host
