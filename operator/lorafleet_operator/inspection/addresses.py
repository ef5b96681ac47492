"""From what a person types to a source: a path, http(s)://, s3:// or hf://.

Only here does the command take credentials, and only from variables that are meant for it. The
operator never does: its own identity must not read for a tenant.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from lorafleet.errors import AccessDenied, PathNotAllowed

from lorafleet_operator.inspection.local import LocalSource
from lorafleet_operator.sources.bounds import SourceSettings, forbidden_kind
from lorafleet_operator.sources.credentials import SecretData
from lorafleet_operator.sources.http import HttpSource
from lorafleet_operator.sources.hugging_face import HuggingFaceSource
from lorafleet_operator.sources.s3 import S3Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet_operator.sources.base import Source

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HUB = re.compile(r"hf://(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?:/(?P<path>.*))?")
_LABEL = "the environment"


def open_address(
    address: str,
    environ: Mapping[str, str],
    *,
    allow_pickle: bool | None = None,
    settings: SourceSettings | None = None,
) -> Source:
    """Return the source at `address`; opens no connection.

    `allow_pickle` None is the kind's default (docs/sources.md). Raises PathNotAllowed for an
    address of no known form, AccessDenied for credentials that are there in part.
    """
    limits = settings or SourceSettings()
    found = _URI.match(address)
    scheme = found[1].lower() if found else ""
    if scheme in ("", "file"):
        path = unquote(urlsplit(address).path) if scheme else address
        return LocalSource(Path(path), limits, allow_pickle=allow_pickle is not False)
    if scheme in ("http", "https"):
        return HttpSource(
            url=address,
            secret=None,
            settings=_reaching(limits, address),
            allow_pickle=bool(allow_pickle),
            on_read=_ignore,
        )
    if scheme == "s3":
        return _s3(address, environ, limits, allow_pickle=allow_pickle is not False)
    if scheme == "hf":
        return _hub(address, environ, limits, allow_pickle=bool(allow_pickle))
    raise PathNotAllowed(
        f"{scheme}:// is no address of an adapter; known are a path, http(s)://, s3://, hf://"
    )


def without_secrets(address: str) -> str:
    """Return the address as it may be printed: a URI without query, fragment, user and password."""
    if _URI.match(address) is None:
        return address
    scheme, _, rest = address.partition("://")
    host, slash, path = re.split(r"[?#]", rest)[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2] if scheme != 'hf' else host}{slash}{path}"


def _s3(
    address: str, environ: Mapping[str, str], limits: SourceSettings, *, allow_pickle: bool
) -> Source:
    bucket, _, prefix = address[len("s3://") :].partition("/")
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or None
    secret = _secret(environ, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    bundle = environ.get("AWS_CA_BUNDLE")
    if secret is not None and bundle:
        secret = SecretData(_LABEL, {**secret.data, "caBundle": _read("AWS_CA_BUNDLE", bundle)})
    return S3Source(
        bucket=bucket,
        prefix=prefix.rstrip("/"),
        region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or None,
        endpoint=endpoint,
        path_style=endpoint is not None,  # what other servers than Amazon's all understand
        secret=secret,
        settings=_reaching(limits, endpoint or ""),
        allow_pickle=allow_pickle,
        on_read=_ignore,
    )


def _hub(
    address: str, environ: Mapping[str, str], limits: SourceSettings, *, allow_pickle: bool
) -> Source:
    found = _HUB.fullmatch(address)
    if found is None:
        raise PathNotAllowed(
            f"{address} is not hf://org/repo, hf://org/repo@revision/path or alike"
        )
    endpoint = environ.get("HF_ENDPOINT") or None
    return HuggingFaceSource(
        repo=found["repo"],
        revision=unquote(found["revision"] or "main"),
        path=(found["path"] or "").rstrip("/"),
        endpoint=endpoint,
        secret=_secret(environ, "HF_TOKEN"),
        settings=_reaching(limits, endpoint or ""),
        allow_pickle=allow_pickle,
        on_read=_ignore,
    )


def _secret(environ: Mapping[str, str], *names: str) -> SecretData | None:
    """Return the variables that are set as if they were a Secret's keys; None if none is."""
    found = {name: environ[name].encode() for name in names if environ.get(name)}
    return SecretData(_LABEL, found) if found else None


def _read(variable: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise AccessDenied(f"{variable}: {path} is not readable ({error.strerror})") from None


def _reaching(limits: SourceSettings, url: str) -> SourceSettings:
    """Allow this machine's own addresses if the person named one, never if a server did."""
    try:
        host = urlsplit(url).hostname or ""
        private = host == "localhost" or forbidden_kind(host, limits) is not None
    except ValueError:  # a name, not an address: what it resolves to is checked as ever
        private = False
    return replace(limits, allow_private_addresses=True) if private else limits


def _ignore(_count: int) -> None:
    """Nobody counts what the command reads."""
