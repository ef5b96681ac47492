"""Local processes that somebody starts, waits for and ends: a log each, and no orphans.

Every process leads a session of its own, so that it ends with all its children, and only they.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

POLL_SECONDS = 0.1
CHILDREN_SECONDS = 5.0
_PORTS = range(15_000, 32_768)
"""Below those that Linux gives to connections and to whoever listens on port 0."""
_turns = itertools.count(secrets.randbelow(len(_PORTS)))


class ProcessFailed(RuntimeError):
    """Raised when a process ended or did not become ready; the text names its log."""


@dataclass(eq=False)
class LocalProcess:
    """One started process and where its output goes."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> LocalProcess:
        """Start `command` with `env` added to ours, output appended to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            popen = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                start_new_session=True,
            )
        return cls(name, popen, log)

    @property
    def pid(self) -> int:
        """The leader's process id."""
        return self.popen.pid

    @property
    def running(self) -> bool:
        """Whether the leader has not ended."""
        return self.popen.poll() is None

    def last_line(self) -> str:
        """The last line of the log that says something, cut to what a screen shows."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 8192))
            lines = file.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:200] if said else "(no output)"

    def wait_until(self, ready: Callable[[], bool], seconds: float, what: str = "ready") -> None:
        """Return when `ready()` is true; ProcessFailed if the process ends or time runs out first."""
        deadline = time.monotonic() + seconds
        while True:
            ended = not self.running  # before the look: what it did last counts
            if ready():
                return
            if ended:
                raise ProcessFailed(
                    f"{self.name} ended with {self.popen.returncode}: {self.last_line()} "
                    f"(log: {self.log})"
                )
            if time.monotonic() > deadline:
                raise ProcessFailed(
                    f"{self.name} is not {what} after {seconds:.0f} s: {self.last_line()} "
                    f"(log: {self.log})"
                )
            time.sleep(POLL_SECONDS)

    def wait(self) -> None:
        """Wait for the end of a process that has one; ProcessFailed unless it ends with 0."""
        if self.popen.wait() != 0:
            raise ProcessFailed(
                f"{self.name} ended with {self.popen.returncode}: {self.last_line()} "
                f"(log: {self.log})"
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)

    def kill(self) -> None:
        """`kill -9` of the process and its children, as a crash would; returns when it is gone."""
        self.signal(signal.SIGKILL)
        self.popen.wait()

    def stop(self, grace_seconds: float = 15) -> None:
        """Ask the leader to end, then kill what is left of its session. May be called twice."""
        if self.running:
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(grace_seconds)
            self._await_children()
        self.kill()

    def _await_children(self) -> None:
        """Give its children a moment to clear up: killed ones leave shared memory behind."""
        deadline = time.monotonic() + CHILDREN_SECONDS
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self.popen.pid, 0)
                time.sleep(POLL_SECONDS)


def free_port(address: str = "127.0.0.1") -> int:
    """A TCP port at `address` that nothing listens on now, and nobody is given before its server starts."""
    while True:
        port = _PORTS[next(_turns) % len(_PORTS)]
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((address, port))
            return port


def answers(url: str, status: int = 200) -> bool:
    """Whether a GET of `url` answers with `status` now."""
    with contextlib.suppress(httpx.TransportError):
        return _client().get(url).status_code == status
    return False


@cache
def _client() -> httpx.Client:
    """One client for all looks: each would make a TLS context, 0.1 s of a core at every poll."""
    return httpx.Client(timeout=2)


def listens(address: str, port: int) -> bool:
    """Whether something accepts TCP connections at `address`:`port` now."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False
