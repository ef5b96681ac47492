"""Watches that last: one that breaks begins again with a list, after a pause.

The framework does so where a version is too old (410), at once and as often as the server says so.
Any other error that a server sends in a watch, as it does while its etcd changes leaders or is slow,
would end the operator; so would half a line, or what a proxy says in the server's place.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import kopf
from kopf._cogs.clients import errors, watching

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    Watch = Callable[..., AsyncGenerator[Any]]

_LOG: Final = logging.getLogger(__name__)
RETRY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0)
"""Pauses between tries to read a list or to watch; the last one is repeated for as long as it takes."""


class Lasting:
    """Lists a kind and watches it, as the framework's `watch` does, and ends when that has broken.

    The framework calls it again and again. It ends after a pause, which grows with each time in a
    row that the watch has brought nothing. Raises kopf.LoginError, and APINotFoundError for a kind
    that is not there: nothing would come of waiting.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._in_vain: Counter[tuple[object, object]] = Counter()  # by kind and namespace

    async def __call__(self, *, resource: Any, namespace: Any, **given: Any) -> AsyncGenerator[Any]:
        """Yield what `watch` does."""
        place = (resource, namespace)
        try:
            async with aclosing(
                self._watch(resource=resource, namespace=namespace, **given)
            ) as stream:
                async for each in stream:
                    if isinstance(each, dict) and each["type"] is not None:  # not of the list
                        self._in_vain.pop(place, None)
                    yield each
        except (kopf.LoginError, errors.APINotFoundError):
            raise
        except Exception as error:  # servers, and what stands before them, may send anything
            text = " ".join(str(error).split())[:500]
            _LOG.warning("the watch of %s broke: %s: %s", resource, type(error).__name__, text)
        pause = RETRY_SECONDS[min(self._in_vain[place], len(RETRY_SECONDS) - 1)]
        self._in_vain[place] += 1
        await asyncio.sleep(pause)


def install() -> None:
    """Make all watches of the framework in this process last."""
    watching.continuous_watch = Lasting(watching.continuous_watch)  # type: ignore[arg-type]
