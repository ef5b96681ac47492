"""The receiver processes, seen from the sidecar: started, watched, started again, ended."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from typing import TYPE_CHECKING

from lorafleet.errors import LorafleetError

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet_sidecar.transfer_settings import TransferSettings

log = logging.getLogger(__name__)
_START_SECONDS = 60.0
_RESTART_SECONDS = 1.0


class ReceiverFailed(LorafleetError):
    """Raised when a receiver process does not come up."""


class ReceiverPool:
    """K processes, each with its own gRPC server; they serve SendChunks and nothing else."""

    def __init__(self, volume: Path, settings: TransferSettings) -> None:
        self._volume = volume
        self._settings = settings
        self._ports: dict[int, int] = {}  # receiver number -> port
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._watchers: list[asyncio.Task[None]] = []

    def ports(self) -> list[int]:
        """Return the ports of the receivers that are up."""
        return [port for _, port in sorted(self._ports.items())]

    def pids(self) -> list[int]:
        """Return the process ids of the receivers."""
        return [process.pid for _, process in sorted(self._processes.items())]

    async def start(self) -> None:
        """Start all receivers. Raises ReceiverFailed if one does not come up."""
        numbers = range(self._settings.receivers)
        await asyncio.gather(*(self._spawn(number) for number in numbers))
        self._watchers = [asyncio.create_task(self._watch(number)) for number in numbers]

    async def close(self) -> None:
        """End all receivers."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()  # they own nothing that a kill could leave behind
            await process.wait()
        self._ports.clear()
        self._processes.clear()

    async def _spawn(self, number: int) -> None:
        base = self._settings.receiver_base_port
        certificates = self._settings.certificates
        orders = {
            "volume": str(self._volume),
            "host": self._settings.receiver_host,
            "port": base + number if base else 0,
            "stall_seconds": self._settings.stall_seconds,
            "tls_dir": str(certificates.folder) if certificates else None,
            "operator_name": self._settings.operator_name,
            "parent": os.getpid(),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "lorafleet_sidecar.receiver_process",
            json.dumps(orders),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        self._processes[number] = process
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), _START_SECONDS)
        except TimeoutError:
            process.kill()
            line = b""
        if not line:
            code = await process.wait()
            raise ReceiverFailed(f"receiver {number} did not start (exit status {code})")
        self._ports[number] = int(line)

    async def _watch(self, number: int) -> None:
        while True:
            code = await self._processes[number].wait()
            self._ports.pop(number, None)
            log.warning("receiver %d ended with status %d; starting it again", number, code)
            await asyncio.sleep(_RESTART_SECONDS)
            try:
                await self._spawn(number)
            except (ReceiverFailed, OSError) as error:
                log.warning("%s", error)
