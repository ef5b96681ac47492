"""Addresses of servers that a tenant names in place of a provider's own."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from lorafleet.errors import PathNotAllowed


def checked_endpoint(endpoint: str, what: str) -> str:
    """Return the http or https URL without a slash at its end; `PathNotAllowed` for another.

    `what` names the field. The text of the endpoint is in no message: it may hold a password.
    """
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise PathNotAllowed(f"{what} is not an http or https URL")
    if "@" in parts.netloc:
        raise PathNotAllowed(f"{what}: user and password in a URL are not allowed")
    return endpoint.rstrip("/")


def object_url(endpoint: str, container: str, key: str) -> str:
    """Return the URL of an object below a bucket or container."""
    return f"{endpoint}/{quote(container)}/{quote(key)}"
