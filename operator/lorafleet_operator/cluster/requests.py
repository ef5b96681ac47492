"""Requests to the API server by path, their answers as JSON.

The library's client connects, authenticates and tells errors apart. Its classes of methods
(`CoreV1Api` and others) stay unused: one of them loads the models of all kinds of objects, which
is a hundred mebibytes for what is a path, a verb and a dict.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from aiohttp import ClientError
from kubernetes.aio import client

from lorafleet_operator import metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ANSWER_SECONDS: Final = 30.0
"""How long a request may take: one whose server went without a word must not hold a pass, and one of
few connections, for the library's five minutes."""
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"

Kind = tuple[str, str, str]
"""Group ("" for the core's), version, plural."""


class NoAnswer(RuntimeError):
    """Raised when the API server is out of reach or refuses; one line for people.

    status: that of its answer, 0 without one.
    """

    def __init__(self, line: str, status: int = 0) -> None:
        super().__init__(line)
        self.status = status


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Raise NoAnswer for what goes wrong with requests in the block."""
    try:
        yield
    except client.ApiException as error:
        raise NoAnswer(f"{what}: {error.status} {error.reason}", error.status) from None
    except (ClientError, TimeoutError) as error:
        raise NoAnswer(f"{what}: the API server does not answer: {error or 'too late'}") from None


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
    seconds: float = _ANSWER_SECONDS,
) -> tuple[int, dict[str, Any]]:
    """Send one request; return the answer's status and JSON.

    seconds: how long it may take.
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
