"""Objects without the record of who wrote which field: half of each adapter's memory, and unread."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Mapping


def drop_authorship(body: Mapping[str, Any]) -> None:
    """Take `managedFields` out of an object as the API server sent it."""
    metadata: dict[str, Any] = body["metadata"]
    metadata.pop("managedFields", None)


def _lean(found: dict[str, Any]) -> dict[str, Any]:
    found.pop("managedFields", None)
    return found


class LeanResponse(aiohttp.ClientResponse):
    """A response of the API server that leaves it out while a list of many objects is read."""

    async def json(self, **options: Any) -> Any:
        """Return the decoded content."""
        return await super().json(**{"loads": partial(json.loads, object_hook=_lean), **options})
