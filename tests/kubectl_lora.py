"""`kubectl lora ...` as a person types it: the real kubectl finds the plugin on the PATH."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localcluster import find_binary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECONDS = 120
_PROGRAMS = {"kubectl-lora": "cli", "kubectl_complete-lora": "complete"}


@dataclass(frozen=True)
class Ran:
    """What became of one command."""

    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the lines of a table, where no cell holds two spaces."""
        return [line.split() for line in self.out.splitlines()]


class KubectlLora:
    """Runs the plugin with one kubeconfig, from a folder of its own on the PATH."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir(exist_ok=True)
        (self.folder / "kubectl").symlink_to(find_binary("kubectl"))
        for name, module in _PROGRAMS.items():
            script = self.folder / name
            code = f"from lorafleet_operator.kubectl.{module} import main; raise SystemExit(main())"
            script.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
            script.chmod(0o755)
        self.environment = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "HOME": str(folder),
            "KUBECONFIG": str(kubeconfig),
            "LANG": "C.UTF-8",
            "PYTHONWARNINGS": "error",
        }

    def run(self, *arguments: str, program: str = "kubectl lora", **environment: str) -> Ran:
        """Run a command to its end, without a terminal."""
        done = subprocess.run(
            [*program.split(), *arguments],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command that does not end by itself; the plugin itself, not below a kubectl."""
        return subprocess.Popen(
            ["kubectl-lora", *arguments],
            env=self.environment,
            executable=self.folder / "kubectl-lora",
            stdout=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def on_terminal(
        self,
        *arguments: str,
        until: Callable[[str], bool] | None = None,
        columns: int = 200,
        end_with: signal.Signals = signal.SIGINT,
        **environment: str,
    ) -> Ran:
        """Run a command on a terminal; once `until` holds of what it wrote, it is sent a signal."""
        master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        given = {**self.environment, "TERM": "xterm", **environment}
        process = subprocess.Popen(
            [self.folder / "kubectl-lora", *arguments],
            env=given,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)
        written, ended, deadline = b"", False, time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if select.select([master], [], [], 0.1)[0]:
                data = b""
                with suppress(OSError):  # EIO: the other side was closed
                    data = os.read(master, 1 << 16)
                if not data:
                    break
                written += data
            if until is not None and not ended and until(written.decode(errors="replace")):
                ended = True
                process.send_signal(end_with)
        process.kill() if time.monotonic() >= deadline else None
        os.close(master)
        return Ran(process.wait(), written.decode(errors="replace"), "")
