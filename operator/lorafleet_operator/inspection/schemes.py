"""What the URI schemes of the command mean: `spec.source`, and credentials of the environment.

Variables are those that the clouds' own tools read; each is used for its scheme alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lorafleet.errors import AccessDenied, PathNotAllowed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_HUB = re.compile(r"hf://(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?:/(?P<path>.*))?")


@dataclass(frozen=True)
class Address:
    """One adapter's place: the manifest's `source`, and the keys of a Secret for it."""

    source: dict[str, Any]
    secret: dict[str, bytes] = field(default_factory=dict, repr=False)
    server: str = ""
    """URL of the server that the person named, "" for the provider's own."""


def _http(address: str, _environ: Mapping[str, str]) -> Address:
    return Address({"http": {"url": address}}, server=address)


def _s3(address: str, environ: Mapping[str, str]) -> Address:
    bucket, prefix = _bucket(address)
    endpoint = _first(environ, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    secret = {name: environ[name].encode() for name in names if environ.get(name)}
    if secret:
        secret |= _file(environ, "AWS_CA_BUNDLE", "caBundle")
    source = {
        "bucket": bucket,
        "prefix": prefix,
        "region": _first(environ, "AWS_REGION", "AWS_DEFAULT_REGION") or None,
        "endpoint": endpoint or None,
        "pathStyle": bool(endpoint),  # what other servers than Amazon's all understand
    }
    return Address({"s3": source}, secret, endpoint)


def _gcs(address: str, environ: Mapping[str, str]) -> Address:
    bucket, prefix = _bucket(address)
    endpoint = environ.get("STORAGE_EMULATOR_HOST", "")
    if endpoint and "://" not in endpoint:
        endpoint = f"http://{endpoint}"
    secret = _file(environ, "GOOGLE_APPLICATION_CREDENTIALS", "serviceAccountKey")
    source = {"bucket": bucket, "prefix": prefix, "endpoint": endpoint or None}
    return Address({"gcs": source}, secret, endpoint)


def _azure(address: str, environ: Mapping[str, str]) -> Address:
    account, path = _bucket(address)
    container, _, prefix = path.partition("/")
    names = {
        "AZURE_STORAGE_CONNECTION_STRING": "connectionString",
        "AZURE_STORAGE_KEY": "accountKey",
        "AZURE_STORAGE_SAS_TOKEN": "sasToken",
    }
    secret = {key: environ[name].encode() for name, key in names.items() if environ.get(name)}
    # Where to connect: the person's own word here, as it never is of a tenant's Secret.
    said = re.search(
        r"(?:^|;)BlobEndpoint=([^;]+)", environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    )
    endpoint = said[1] if said else ""
    source = {
        "account": account,
        "container": container,
        "prefix": prefix,
        "endpoint": endpoint or None,
    }
    return Address({"azureBlob": source}, secret, endpoint)


def _hub(address: str, environ: Mapping[str, str]) -> Address:
    found = _HUB.fullmatch(address)
    if found is None:
        raise PathNotAllowed(f"{address} is none of hf://org/repo, hf://org/repo@revision/path")
    endpoint = environ.get("HF_ENDPOINT", "")
    token = environ.get("HF_TOKEN", "")
    source = {
        "repo": found["repo"],
        "revision": unquote(found["revision"] or "main"),
        "path": (found["path"] or "").rstrip("/"),
        "endpoint": endpoint or None,
    }
    secret = {"HF_TOKEN": token.encode()} if token else {}
    return Address({"huggingFace": source}, secret, endpoint)


def _oci(address: str, environ: Mapping[str, str]) -> Address:
    host = urlsplit(address).hostname or ""
    secret = {}
    if environ.get("DOCKER_CONFIG"):
        secret = _file(environ, "DOCKER_CONFIG", "config.json", "config.json")
    plain = host == "localhost" or host.startswith("127.")  # as docker takes them
    source = {"reference": address.removeprefix("oci://"), "plainHttp": plain}
    return Address({"oci": source}, secret, f"http://{host}")


SCHEMES: dict[str, Callable[[str, Mapping[str, str]], Address]] = {
    "http": _http,
    "https": _http,
    "s3": _s3,
    "gs": _gcs,
    "az": _azure,
    "hf": _hub,
    "oci": _oci,
}
"""Scheme -> from address and environment to what is meant. They raise PathNotAllowed for an
address of another form and AccessDenied for a file of credentials that cannot be read."""


def _bucket(address: str) -> tuple[str, str]:
    """Return what stands before and after the first slash of a URI, without slashes at the end."""
    bucket, _, prefix = address.partition("://")[2].partition("/")
    return bucket, prefix.rstrip("/")


def _first(environ: Mapping[str, str], *names: str) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def _file(environ: Mapping[str, str], name: str, key: str, below: str = "") -> dict[str, bytes]:
    """Return the content of the file that a variable names, under `key`; {} if it is not set."""
    if not environ.get(name):
        return {}
    path = Path(environ[name]) / below
    try:
        return {key: path.read_bytes()}
    except OSError as error:
        raise AccessDenied(f"{name}: {path} is not readable ({error.strerror})") from None
