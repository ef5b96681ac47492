"""Requests to the API server by path, their answers as JSON.

The library's client connects, authenticates and tells errors apart. Its classes of methods
(`CoreV1Api` and others) stay unused: one of them loads the models of all kinds of objects, which
is a hundred mebibytes for what is a path, a verb and a dict.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from kubernetes.aio import client

from lorafleet_operator import metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"

Kind = tuple[str, str, str]
"""Group ("" for the core's), version, plural."""


def path(kind: Kind, namespace: str = "", name: str = "", part: str = "") -> str:
    """Return where objects of a kind are; those of a namespace, one of them, a part of that one."""
    group, version, plural = kind
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    inside = ("namespaces", namespace) if namespace else ()
    return "/".join([root, *(quote(p, safe="") for p in (*inside, plural, name, part) if p)])


async def ask(
    api: client.ApiClient, method: str, path: str, body: Any = None, **options: Any
) -> dict[str, Any]:
    """Send one request, as `send` does; return the answer's JSON."""
    return (await send(api, method, path, body, **options))[1]


async def send(
    api: client.ApiClient,
    method: str,
    path: str,
    body: Any = None,
    *,
    content_type: str = JSON,
    accept: str = JSON,
    query: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> tuple[int, dict[str, Any]]:
    """Send one request; return the answer's status and JSON.

    seconds: how long it may take, by default the library's five minutes.
    Raises client.ApiException for an answer that is an error, aiohttp.ClientError and TimeoutError
    without one.
    """
    headers = {"Accept": accept, "Content-Type": content_type}
    verb, url, headers, body, _ = await api.param_serialize(
        method, path, None, [*(query or {}).items()], headers, body, auth_settings=["BearerToken"]
    )
    code = "none"
    try:
        response = await api.call_api(verb, url, headers, body, _request_timeout=seconds)
        code = str(response.status)
        content = await response.read()
    finally:
        metrics.API_REQUESTS.labels(method, code).inc()
    if not 200 <= response.status <= 299:
        text = content.decode(errors="replace")
        raise client.ApiException.from_response(http_resp=response, body=text, data=None)
    return response.status, json.loads(content)
