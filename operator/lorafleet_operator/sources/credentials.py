"""From the data of a Secret to what a provider sends; nothing here ever prints a value.

Values are hidden from `repr`, and no error names anything but the Secret and its keys.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lorafleet.errors import AccessDenied

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALIASES = {
    "accessKeyID": ("accessKeyID", "accessKeyId", "AWS_ACCESS_KEY_ID"),
    "secretAccessKey": ("secretAccessKey", "AWS_SECRET_ACCESS_KEY"),
    "sessionToken": ("sessionToken", "AWS_SESSION_TOKEN"),
    "caBundle": ("caBundle", "ca.crt"),
    "token": ("token", "HF_TOKEN"),
    "username": ("username",),
    "password": ("password",),
    "serviceAccountKey": (
        "serviceAccountKey",
        "service-account.json",
        "key.json",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
    ),
    "accountKey": ("accountKey", "azurestorageaccountkey", "AZURE_STORAGE_ACCOUNT_KEY"),
    "connectionString": ("connectionString", "AZURE_STORAGE_CONNECTION_STRING"),
    "sasToken": ("sasToken", "AZURE_STORAGE_SAS_TOKEN"),
    "dockerConfig": (".dockerconfigjson", "config.json"),
}
"""Key of our documentation -> the names under which it is looked for, first one wins."""

_OF_SEVERAL_LINES = frozenset(
    name for key in ("caBundle", "serviceAccountKey", "dockerConfig") for name in _ALIASES[key]
)


@dataclass(frozen=True)
class S3Credentials:
    """Static keys of an S3 account."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(repr=False, default=None)


@dataclass(frozen=True)
class SecretData:
    """The keys of one Secret, looked up by our names; `label` is `Secret ns/name`."""

    label: str
    data: Mapping[str, bytes] = field(repr=False)

    def get(self, key: str) -> str | None:
        """Return the value without surrounding white space, None if the key is absent or empty."""
        for name in _ALIASES[key]:
            value = self.data.get(name)
            if value is not None and value.strip():
                return self._text(name, value)
        return None

    def require(self, key: str) -> str:
        """Return the value; `AccessDenied` names the key that is missing."""
        value = self.get(key)
        if value is None:
            raise AccessDenied(f"{self.label} lacks key {key}")
        return value

    def ca_bundle(self) -> str | None:
        """Return the PEM text of extra certificate authorities, None if there is none."""
        return self.get("caBundle")

    def s3(self) -> S3Credentials | None:
        """Return the keys for S3, None if the Secret carries a `caBundle` alone.

        `AccessDenied` if one of them is missing.
        """
        keys = ("accessKeyID", "secretAccessKey", "sessionToken")
        if self.ca_bundle() is not None and not any(map(self.get, keys)):
            return None
        return S3Credentials(
            access_key_id=self.require("accessKeyID"),
            secret_access_key=self.require("secretAccessKey"),
            session_token=self.get("sessionToken"),
        )

    def lacks(self, *keys: str) -> AccessDenied:
        """Return the error that none of `keys` is there."""
        return AccessDenied(f"{self.label} lacks key {' or '.join(keys)}")

    def authorization_key(self) -> str | None:
        """Return the name of the key that `authorization` sends, for messages."""
        for key in ("token", "username"):
            for name in _ALIASES[key]:
                if self.data.get(name, b"").strip():
                    return name
        return None

    def authorization(self) -> str | None:
        """Return the value of an HTTP Authorization header.

        A `token` is sent as Bearer, `username` with `password` as Basic. A Secret with none of
        them is an error unless it carries a `caBundle` alone.
        """
        token = self.get("token")
        if token is not None:
            return f"Bearer {token}"
        username = self.get("username")
        if username is not None:
            pair = f"{username}:{self.require('password')}"
            return "Basic " + base64.b64encode(pair.encode()).decode()
        if self.ca_bundle() is None:
            raise AccessDenied(f"{self.label} lacks key token (or username and password)")
        return None

    def _text(self, name: str, value: bytes) -> str:
        try:
            text = value.decode("utf-8").strip()
        except UnicodeDecodeError:
            text = None
        if text is None or not (name in _OF_SEVERAL_LINES or text.isprintable()):
            # Raised outside of the handler: the exception there holds the value.
            raise AccessDenied(f"{self.label} key {name} is not one line of text")
        return text


def read_secret(
    reference: str | None, secret: Mapping[str, bytes] | None, namespace: str
) -> SecretData | None:
    """Return the referenced Secret's keys, None if the spec references none.

    A referenced Secret that does not exist is `AccessDenied`: never anonymous by accident.
    """
    if reference is None:
        return None
    label = f"Secret {namespace}/{reference}"
    if secret is None:
        raise AccessDenied(f"{label} not found")
    return SecretData(label, dict(secret))
