"""From what a person types to a source: a path, or a URI of `schemes`.

Only here does lorafleet take credentials from its environment, because they are the person's own.
The operator never does: its identity must not read for a tenant.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from lorafleet.errors import PathNotAllowed
from lorafleet.quoting import shown

from lorafleet_operator.inspection.local import LocalSource
from lorafleet_operator.inspection.schemes import SCHEMES
from lorafleet_operator.sources.bounds import SourceSettings, forbidden_kind
from lorafleet_operator.sources.credentials import SecretData
from lorafleet_operator.sources.registry import open_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet_operator.sources.base import Source

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_address(
    address: str, environ: Mapping[str, str], *, allow_pickle: bool | None = None
) -> Source:
    """Return the source at `address`; opens no connection.

    `allow_pickle` None is the kind's default (docs/sources.md). Raises PathNotAllowed for an
    address of no known form, AccessDenied for credentials that are there in part.
    """
    limits = SourceSettings()
    found = _URI.match(address)
    scheme = found[1].lower() if found else ""
    if scheme in ("", "file"):
        path = _file_path(address) if scheme else address
        return LocalSource(Path(path), limits, allow_pickle=allow_pickle is not False)
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise PathNotAllowed(f"{scheme}:// is no address of an adapter; known are a path, {known}")
    place = SCHEMES[scheme](address, environ)
    return open_source(
        {**place.source, "allowPickle": allow_pickle},
        namespace="command",
        name="inspect",
        settings=_reaching(limits, place.server),
        secret=SecretData("the environment", place.secret) if place.secret else None,
    )


def _file_path(address: str) -> str:
    """Return the path of a file:// URI; a host would be taken for its first folder."""
    try:
        parts = urlsplit(address)
    except ValueError:
        parts = None
    if parts is None or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise PathNotAllowed(f"{shown(address)} is not of the form file:///absolute/path")
    return unquote(parts.path)


def without_secrets(address: str) -> str:
    """Return the address as it may be printed: a URI without query, fragment, user and password."""
    found = _URI.match(address)
    if found is None:
        return address
    host, slash, path = re.split(r"[?#]", address[found.end() :])[0].partition("/")
    if found[1].lower() in ("http", "https"):
        host = host.rpartition("@")[2]
    return f"{found[0]}{host}{slash}{path}"


def _reaching(limits: SourceSettings, url: str) -> SourceSettings:
    """Allow this machine's own addresses if the person named one, never if a server did."""
    try:
        host = urlsplit(url).hostname or ""
        private = host == "localhost" or forbidden_kind(host, limits) is not None
    except ValueError:  # a name, not an address: what it resolves to is checked as ever
        private = False
    return replace(limits, allow_private_addresses=True) if private else limits
