"""A small HTTP server on a Unix socket, inside the event loop of somebody else's program."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

import uvicorn

from lorafleet_vllm.control_connections import BoundedConnection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_log = logging.getLogger("vllm.lorafleet")
_MODE = 0o660  # the sidecar runs as another user of the same group


class _Guest(uvicorn.Server):  # type: ignore[misc]  # uvicorn is untyped here
    """A uvicorn server that leaves the process's signals to vLLM's own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    def install_signal_handlers(self) -> None:
        """Install none (the older name of the same seam)."""


async def serve(app: Any, path: Path) -> None:
    """Serve `app` at `path` until the task is cancelled; failures are logged, never raised."""
    try:
        listener = listen(path)
    except OSError as error:
        _log.error("lorafleet: cannot listen on %s: %s", path, error)
        return
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=60,
    )
    try:
        await _Guest(config).serve(sockets=[listener])
    except (Exception, SystemExit):  # uvicorn exits the process when it cannot start
        _log.exception("lorafleet: the control socket has died")
    finally:
        listener.close()


def listen(path: Path) -> socket.socket:
    """Return a socket bound to `path` with mode 0660; one that a dead engine left is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The umask holds for the whole process, so bind under a private name, then publish it.
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.unlink(missing_ok=True)
    listener.bind(str(hidden))
    hidden.chmod(_MODE)
    hidden.rename(path)
    listener.listen(64)
    listener.setblocking(False)
    return listener
