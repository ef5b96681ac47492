"""The last profile that the engine reported, kept on the volume for while vLLM restarts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from lorafleet.errors import EngineUnreachable
from lorafleet.profile import EngineProfile

from lorafleet_sidecar import index

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)


class ProfileCache:
    """Remembers one profile, in memory and in `run/profile.json`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._profile: EngineProfile | None = None
        with contextlib.suppress(FileNotFoundError):
            try:
                self._profile = EngineProfile.from_json(path.read_text())
            except ValueError as error:
                log.warning("ignored %s: %s", path, error)

    def get(self) -> EngineProfile:
        """Return the newest profile. Raises EngineUnreachable before the engine's first answer."""
        if self._profile is None:
            raise EngineUnreachable("the engine's profile is not known yet: vLLM has not answered")
        return self._profile

    async def keep(self, profile: EngineProfile | None) -> None:
        """Remember `profile`, unless it is None or the one that is known."""
        if profile is None or profile == self._profile:
            return
        self._profile = profile
        await asyncio.to_thread(self._write, profile.to_json())

    def _write(self, text: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        index.write_durably(self._path, text.encode())
