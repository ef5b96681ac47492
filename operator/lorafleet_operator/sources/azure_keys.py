"""What a Secret holds for an Azure account: one of a key, a signature, a token. Pure."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lorafleet.errors import AccessDenied

if TYPE_CHECKING:
    from lorafleet_operator.sources.credentials import SecretData

_SAS = re.compile(r"[A-Za-z0-9%&=._~:/+,;-]*\bsig=[A-Za-z0-9%&=._~:/+,;-]+")


@dataclass(frozen=True)
class AzureKeys:
    """At most one of `account_key`, `sas` and `token` is there."""

    name: str = ""
    """The Secret's key that they come from, "" for nobody's."""
    account_key: bytes | None = field(repr=False, default=None)
    sas: str = field(repr=False, default="")
    """A shared access signature, as it stands in a query."""
    token: str = field(repr=False, default="")


def azure_keys(secret: SecretData | None, account: str) -> AzureKeys:
    """Return what the Secret is good for; `AccessDenied` if that is nothing."""
    if secret is None:
        return AzureKeys()
    if (text := secret.get("connectionString")) is not None:
        return _connection(text, secret.label, account)
    if (text := secret.get("accountKey")) is not None:
        return _of_key(text, secret.label, "accountKey")
    if (text := secret.get("sasToken")) is not None:
        return _of_sas(text, secret.label, "sasToken")
    if (text := secret.get("token")) is not None:
        return AzureKeys("token", token=text)
    if secret.ca_bundle() is None:
        raise secret.lacks("accountKey", "sasToken", "connectionString", "token")
    return AzureKeys()


def _connection(text: str, label: str, account: str) -> AzureKeys:
    """Take the credentials of a connection string; where to connect is for the spec to say."""
    name = "connectionString"
    parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    if parts.get("AccountName", account) != account:
        raise AccessDenied(f"{label} key {name} is for another account than {account}")
    if "AccountKey" in parts:
        return _of_key(parts["AccountKey"], label, name)
    if "SharedAccessSignature" in parts:
        return _of_sas(parts["SharedAccessSignature"], label, name)
    raise AccessDenied(f"{label} key {name} holds no AccountKey and no SharedAccessSignature")


def _of_key(text: str, label: str, name: str) -> AzureKeys:
    try:
        return AzureKeys(name, account_key=base64.b64decode(text, validate=True))
    except ValueError:
        pass
    # Outside of the handler: the exception there holds the value.
    raise AccessDenied(f"{label} key {name} holds no account key in base64")


def _of_sas(text: str, label: str, name: str) -> AzureKeys:
    text = text.removeprefix("?")
    if not _SAS.fullmatch(text):
        raise AccessDenied(f"{label} key {name} is not a shared access signature (sv=..&sig=..)")
    return AzureKeys(name, sas=text)
