"""Whether the process at the other end of a transfer still lives, asked beside the transfer.

A message that is not taken says nothing: the other side may wait for its own neighbour, over a slow
link. So the question goes over a connection of its own, where no bytes of the transfer queue, and
what counts is only whether any answer comes. How long it may take follows from how long answers
took; the asker's own delays do not count, for the wait is cut in pieces.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from lorafleet.errors import EngineUnreachable, LorafleetError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

QUIET_SECONDS: Final = 0.5
"""An answer, or a message of a stream, may always take so long."""
_BEFORE_SECONDS: Final = 1.0
"""Before the first question: most transfers are over by then, and need no connection for it."""
_EVERY_SECONDS: Final = 0.1
_FIRST_SECONDS: Final = 1.5
"""For the first answer: a connection is made, and its first packet may be lost once."""
_SLACK: Final = 2
_PIECES: Final = 5


class Pulse:
    """Asks from its start to its `stop`; a lost pulse ends every wait `within` it at once.

    `ask` returns when the process answered, whatever it said, and raises LorafleetError when it
    cannot be reached. `name` is for the one line of the error; `late` is raised when the process
    lives and a wait was too long all the same. Belongs to one event loop.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[], Awaitable[object]],
        longest: float,
        late: type[LorafleetError] = EngineUnreachable,
    ) -> None:
        self.lost: LorafleetError | None = None
        self._name = name
        self._ask = ask
        self._longest = longest
        self._late = late
        self._timers: set[asyncio.Timeout] = set()
        self._task: asyncio.Task[None] | None = asyncio.create_task(self._run())

    @asynccontextmanager
    async def within(self, seconds: float, what: str) -> AsyncIterator[None]:
        """Bound a wait. Raises `late` after `seconds`, what `ask` raised once the pulse is lost."""
        try:
            async with asyncio.timeout(0 if self.lost else seconds) as timer:
                self._timers.add(timer)
                try:
                    yield
                finally:
                    self._timers.discard(timer)
        except TimeoutError:
            late = self._late(f"{self._name} did not {what} within {seconds:g} s")
            raise self.lost or late from None

    async def stop(self) -> None:
        """Ask no more.

        The task is let go of, for its end refers to this object: only the collector of cycles would
        free both, and with them what `ask` holds, a connection.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        patience = _FIRST_SECONDS
        slowest = 0.0
        pause = _BEFORE_SECONDS
        try:
            while True:
                await asyncio.sleep(pause)
                pause = _EVERY_SECONDS
                slowest = max(slowest, await self._answered(min(patience, self._longest)))
                patience = max(QUIET_SECONDS, _SLACK * slowest)
        except LorafleetError as error:
            self.lost = error
            for timer in self._timers:
                if not timer.expired():
                    timer.reschedule(asyncio.get_running_loop().time())

    async def _answered(self, patience: float) -> float:
        """Return the seconds that an answer took. Raises EngineUnreachable without one."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        asked = asyncio.ensure_future(self._ask())
        try:
            for _ in range(_PIECES):
                if (await asyncio.wait([asked], timeout=patience / _PIECES))[0]:
                    asked.result()
                    return loop.time() - began
        finally:
            asked.cancel()
        raise EngineUnreachable(f"{self._name} gave no sign of life for {patience:.2g} s")
