"""Tokens for a real registry: a key whose certificate it trusts, and the server that signs."""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from servers import LyingServer, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ISSUER, SERVICE = "test-issuer", "test-registry"


@dataclass
class TokenServer:
    """Gives tokens to those who send the password, if one is wanted."""

    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    password: str = ""
    """Wanted Basic credentials, `user:password`; empty: anybody gets a token."""
    life_s: int = 300
    web: LyingServer = field(default_factory=LyingServer)

    def write_certificate(self, path: Path) -> None:
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    @contextlib.asynccontextmanager
    async def running(self, port: int) -> AsyncIterator[TokenServer]:
        self.web.on_request = self._answer
        async with self.web.running(port=port):
            yield self

    def token(self, repository: str, actions: list[str]) -> str:
        """Return a token for the registry."""
        der = self.certificate.public_bytes(serialization.Encoding.DER)
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": SERVICE,
            "sub": "",
            "nbf": now - 60,
            "iat": now,
            "exp": now + 3600,
            "jti": "1",
            "access": [{"type": "repository", "name": repository, "actions": actions}],
        }
        headers = {"x5c": [base64.b64encode(der).decode()]}
        return jwt.encode(claims, self.key, "ES256", headers)

    def _answer(self, web: LyingServer, request: Request) -> None:
        wanted = base64.b64encode(self.password.encode()).decode()
        if self.password and request.headers.get("authorization") != f"Basic {wanted}":
            web.status, web.body = 401, b"{}"
            return
        asked = parse_qs(urlsplit(request.path).query)
        repository = asked["scope"][0].split(":")[1]
        assert asked["service"] == [SERVICE]
        answer: dict[str, Any] = {"token": self.token(repository, ["pull"])}
        answer["expires_in"] = self.life_s
        web.status, web.body = 200, json.dumps(answer).encode()

    @functools.cached_property
    def certificate(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ISSUER)])
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(1)
            .not_valid_before(now - datetime.timedelta(minutes=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
