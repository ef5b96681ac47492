"""Lists of objects, taken out of the framework's hands as a whole.

The framework would start a task for each object of a list, and let all of them wait until the last
one was looked at: after a start that grows with the square of the objects, in time, and holds all
of them as Python objects. And it tells of nobody who went while its watch was broken. So a list
that is read here is handed over whole, page by page, and the framework gets an empty one, from
whose version it goes on watching.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


@dataclass(frozen=True)
class Page:
    """A part of a list of all objects of a kind, in a namespace or (empty) the cluster."""

    plural: str
    namespace: str
    items: list[dict[str, Any]]
    version: int
    """resourceVersion of the list."""
    first: bool
    last: bool


def listing_responses(
    plurals: Collection[str], take: Callable[[Page], None]
) -> type[aiohttp.ClientResponse]:
    """Return the class of responses whose lists of those kinds go to `take`.

    No list carries the record of who wrote which field, which is half of each object.
    """

    class Response(aiohttp.ClientResponse):
        async def json(self, **options: Any) -> Any:
            """Return the decoded content."""
            loads = partial(json.loads, object_hook=_lean)
            found = await super().json(**{"loads": loads, **options})
            *_, place, namespace, plural = ("", "", *self.url.path.split("/"))
            if self.method == "GET" and plural in plurals and "items" in found:
                more = found["metadata"].get("continue")
                take(
                    Page(
                        plural,
                        namespace if place == "namespaces" else "",
                        found["items"],
                        int(found["metadata"]["resourceVersion"]),
                        first="continue" not in self.url.query,
                        last=not more,
                    )
                )
                found["items"] = []
            return found

    return Response


def _lean(found: dict[str, Any]) -> dict[str, Any]:
    found.pop("managedFields", None)
    return found
