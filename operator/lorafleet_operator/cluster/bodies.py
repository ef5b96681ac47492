"""Objects as the API server last gave them, packed: a pass unpacks the one that it is about.

As Python objects ten thousand adapters would take ten times the memory.
"""

from __future__ import annotations

import json
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


class Bodies:
    """The newest body of each object, by UID, from watches and from answers to our own writes.

    The watch brings a change back a moment after it was written; until then the answer to the
    patch is the newest state, and computing from it keeps transition times and Events right.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, bytes]] = {}
        self._listening: dict[str, list[Callable[[], None]]] = {}

    def keep(self, body: Mapping[str, Any]) -> bool:
        """Keep `body` unless a newer one is known; return whether it is news."""
        uid, version = body["metadata"]["uid"], version_of(body)
        if uid in self._kept and version <= self._kept[uid][0]:
            return False
        self._kept[uid] = (version, _packed(body))
        self._tell(uid)
        return True

    @contextmanager
    def told(self, uid: str, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener` for each newer body of the object and when that is forgotten, as long as
        the block runs."""
        listening = self._listening.setdefault(uid, [])
        listening.append(listener)
        try:
            yield
        finally:
            listening.remove(listener)
            if not listening:
                self._listening.pop(uid, None)

    def answered(self, body: Mapping[str, Any]) -> None:
        """Keep the answer to a write, unless the object has gone meanwhile."""
        if body["metadata"]["uid"] in self._kept:
            self.keep(body)

    def get(self, uid: str) -> dict[str, Any] | None:
        """Return the newest body of the object, None if it is not known."""
        found = self._kept.get(uid)
        return None if found is None else json.loads(zlib.decompress(found[1]))

    def newest(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the newest body of the object that `body` is of."""
        found = self._kept.get(body["metadata"]["uid"])
        if found is None or found[0] <= version_of(body):
            return body
        return json.loads(zlib.decompress(found[1]))  # type: ignore[no-any-return]

    def drop(self, uid: str) -> None:
        """Forget an object."""
        if self._kept.pop(uid, None) is not None:
            self._tell(uid)

    def _tell(self, uid: str) -> None:
        for listener in self._listening.get(uid, ()):
            listener()


def version_of(body: Mapping[str, Any]) -> int:
    """Return the object's resourceVersion, which grows with every change of it."""
    return int(body["metadata"]["resourceVersion"])


def _packed(body: Mapping[str, Any]) -> bytes:
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    if _APPLIED in (metadata.get("annotations") or {}):
        metadata["annotations"] = {
            key: value for key, value in metadata["annotations"].items() if key != _APPLIED
        }
    text = json.dumps({**body, "metadata": metadata}, separators=(",", ":"))
    return zlib.compress(text.encode(), 1)
