"""The LoRAAdapter that names a pushed revision: read, made, and pointed at the next one."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientError
from kubernetes.aio import client
from lorafleet.errors import InvalidAdapter, SourceUnavailable

from lorafleet_operator.api import names
from lorafleet_operator.cluster.requests import JSON_PATCH, ask, path

if TYPE_CHECKING:
    from collections.abc import Mapping

_KIND: Final = (names.GROUP, names.VERSION, names.ADAPTER_PLURAL)
_TRIES: Final = 5
_SECONDS: Final = 30.0


async def read(api: client.ApiClient, namespace: str, name: str) -> dict[str, Any] | None:
    """Return the adapter, None if there is none. Raises SourceUnavailable."""
    try:
        return await ask(api, "GET", path(_KIND, namespace, name), seconds=_SECONDS)
    except client.ApiException as error:
        if error.status == 404:
            return None
        raise _refused(error) from None
    except (ClientError, TimeoutError) as error:
        raise SourceUnavailable(f"the API server does not answer: {error}") from None


async def create(
    api: client.ApiClient,
    namespace: str,
    name: str,
    spec: Mapping[str, Any],
    *,
    only_ask: bool = False,
) -> dict[str, Any]:
    """Make the adapter; return it, or the one that somebody else made meanwhile.

    only_ask: whether the API server is only to say if it would take it.
    Raises InvalidAdapter with the API server's words when it refuses, SourceUnavailable.
    """
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.ADAPTER_KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
    try:
        query = {"dryRun": "All"} if only_ask else None
        place = path(_KIND, namespace)
        return await ask(api, "POST", place, body, query=query, seconds=_SECONDS)
    except client.ApiException as error:
        if error.status == 409 and (there := await read(api, namespace, name)) is not None:
            return there
        raise _refused(error) from None
    except (ClientError, TimeoutError) as error:
        raise SourceUnavailable(f"the API server does not answer: {error}") from None


async def point(
    api: client.ApiClient, body: dict[str, Any], push: Mapping[str, Any]
) -> dict[str, Any]:
    """Make `push` the adapter's spec.source.push; return the adapter then.

    Only of the same object as `body`, and only one with source push: an edit in between is kept.
    """
    metadata = body["metadata"]
    place = path(_KIND, metadata["namespace"], metadata["name"])
    for attempt in range(_TRIES):
        if body["spec"]["source"].get("push") == push:
            return body
        change = [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            {
                "op": "test",
                "path": "/metadata/resourceVersion",
                "value": body["metadata"]["resourceVersion"],
            },
            {"op": "replace", "path": "/spec/source/push", "value": dict(push)},
        ]
        try:
            return await ask(api, "PATCH", place, change, content_type=JSON_PATCH, seconds=_SECONDS)
        except client.ApiException as error:
            if error.status not in (409, 422) or attempt == _TRIES - 1:
                raise _refused(error) from None
        except (ClientError, TimeoutError) as error:
            raise SourceUnavailable(f"the API server does not answer: {error}") from None
        await asyncio.sleep(random.uniform(0, 0.05 * 2**attempt))  # noqa: S311 - jitter
        there = await read(api, metadata["namespace"], metadata["name"])
        if there is None or there["metadata"]["uid"] != metadata["uid"]:
            raise InvalidAdapter("the LoRAAdapter was deleted while its revision came")
        if there["metadata"].get("deletionTimestamp"):
            raise InvalidAdapter("the LoRAAdapter is being deleted by now")
        if there["spec"]["source"].get("push") is None:
            raise InvalidAdapter("the LoRAAdapter has another source than push by now")
        body = there
    raise SourceUnavailable("the LoRAAdapter changes all the time")


def _refused(error: client.ApiException) -> InvalidAdapter | SourceUnavailable:
    """Return the API server's refusal in one line."""
    try:
        said = json.loads(error.body or "{}").get("message") or error.reason
    except ValueError:
        said = error.reason
    line = " ".join(str(said).split())[:500]
    of_operator = ': User "' in line  # what it lacks is for an administrator to mend
    if error.status in (400, 404, 409, 422) or (error.status == 403 and not of_operator):
        return InvalidAdapter(line)
    return SourceUnavailable(f"the API server said {error.status}: {line}")
