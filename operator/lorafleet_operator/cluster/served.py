"""Whether the API server serves the custom resources as this version of the operator needs them.

A field that an older CustomResourceDefinition lacks is dropped from every write without a word, so
it is looked for before anything is written. What is served stands in the OpenAPI document of the
group, which every account may read; the definitions themselves a Role cannot give.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientError
from kubernetes.aio import client

from lorafleet_operator.api import names
from lorafleet_operator.api.schema import KINDS, structural_schema
from lorafleet_operator.cluster.requests import ask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LOG: Final = logging.getLogger(__name__)
_DOCUMENT: Final = f"/openapi/v3/apis/{names.API_VERSION}"
_PAUSE_SECONDS: Final = 1.0
_SHOWN: Final = 3


class NotServed(RuntimeError):
    """Raised when a resource, or fields of it, are not there; one line for people."""


async def wait_until_served(api: client.ApiClient, seconds: float) -> None:
    """Return when everything is served. Raises NotServed if it is not after `seconds`.

    Definitions that were installed or changed just now appear some seconds later. An API server
    that gives no such document, or no answer, is left to the framework, which tries for ever.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    said = ""
    while True:
        try:
            problem = await look(api)
        except (client.ApiException, ClientError, TimeoutError) as error:
            _LOG.warning("cannot see which resources are served: %s", _first_line(error))
            return
        if not problem:
            return
        if asyncio.get_running_loop().time() >= deadline:
            raise NotServed(problem)
        if problem != said:
            _LOG.warning("waiting for %d s: %s", seconds, problem)
            said = problem
        await asyncio.sleep(_PAUSE_SECONDS)


async def look(api: client.ApiClient) -> str:
    """Return what is missing, as one line, empty if nothing is.

    Raises client.ApiException, aiohttp.ClientError and TimeoutError.
    """
    try:
        document = await ask(api, "GET", _DOCUMENT, seconds=30.0)
    except client.ApiException as error:
        if error.status != 404:
            raise
        document = {}
    return problem_of(document)


def problem_of(document: Mapping[str, Any]) -> str:
    """Return what an OpenAPI document of the group lacks, as one line, empty for nothing."""
    served = {
        each["kind"]: schema
        for schema in document.get("components", {}).get("schemas", {}).values()
        for each in schema.get("x-kubernetes-group-version-kind") or ()
        if (each["group"], each["version"]) == (names.GROUP, names.VERSION)
    }
    absent = [kind.kind for kind in KINDS if kind.kind not in served]
    if absent:
        return (
            f"the API server has no {' and no '.join(absent)} of {names.API_VERSION}: install the "
            "CustomResourceDefinitions (the chart's, or kubectl apply -f crds/)"
        )
    for kind in KINDS:
        missing = list(_missing(structural_schema(kind.model), served[kind.kind], ""))
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            return (
                f"the CustomResourceDefinition of {kind.kind} is older than this operator, it has no "
                f"{', '.join(missing[:_SHOWN])}{more}: upgrade the CustomResourceDefinitions first"
            )
    return ""


def _missing(wanted: Mapping[str, Any], served: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield each field that is wanted and not served, without those inside of it."""
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name, node in wanted.get("properties", {}).items():
        if not path and name in ("apiVersion", "kind", "metadata"):
            continue
        if name not in served.get("properties", {}):
            yield path + name
        else:
            yield from _missing(node, served["properties"][name], f"{path}{name}.")
    if isinstance(wanted.get("items"), dict):
        yield from _missing(wanted["items"], served.get("items", {}), f"{path.rstrip('.')}[].")


def _first_line(error: Exception) -> str:
    if isinstance(error, client.ApiException):
        return f"{error.status} {error.reason}"
    return f"{error or type(error).__name__}".partition("\n")[0]
