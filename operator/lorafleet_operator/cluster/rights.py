"""Whether the operator may read what it watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import ClientError
from kubernetes.aio import client

from lorafleet_operator.api import names
from lorafleet_operator.cluster.requests import NoAnswer, ask, path

if TYPE_CHECKING:
    from lorafleet_operator.cluster.requests import Kind

_WATCHED: Final[tuple[Kind, ...]] = (
    (names.GROUP, names.VERSION, names.ADAPTER_PLURAL),
    (names.GROUP, names.VERSION, names.POOL_PLURAL),
    (names.GROUP, names.VERSION, names.GRANT_PLURAL),
    ("", "v1", "pods"),
    ("", "v1", "services"),
    ("discovery.k8s.io", "v1", "endpointslices"),
)
_OF_THE_CLUSTER: Final[tuple[Kind, ...]] = (("", "v1", "namespaces"), ("", "v1", "nodes"))


async def list_each(api: client.ApiClient, namespace: str) -> None:
    """List one object of each kind in a namespace, "" for all of them. Raises NoAnswer."""
    where = f"in namespace {namespace}" if namespace else "in every namespace"
    for kind in (*_WATCHED, *(() if namespace else _OF_THE_CLUSTER)):
        try:
            await ask(api, "GET", path(kind, namespace), query={"limit": "1"})
        except client.ApiException as error:
            line = f"rights: may not list {kind[2]} {where}: {error.status} {error.reason}"
            raise NoAnswer(line) from None
        except (ClientError, TimeoutError) as error:
            raise NoAnswer(f"the API server does not answer: {error}") from None
