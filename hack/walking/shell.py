"""Runs blocks of commands as one person would in one shell: what a block exports, the next has."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from kubelets.layout import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path


class StepFailed(RuntimeError):
    """Raised when a step did not come out as the page tells; one line."""


class Shell:
    """Keeps the exported variables in `directory` between blocks."""

    def __init__(self, directory: Path) -> None:
        self._variables = directory / "variables"
        self._variables.touch(mode=0o600)

    def run(self, commands: str) -> str:
        """Run `commands`, showing them and what they print; return what they print.

        Raises StepFailed with the last line of a command that failed.
        """
        script = (
            f"set -euo pipefail\n. {self._variables}\n{commands}\nexport -p > {self._variables}\n"
        )
        for line in commands.splitlines():
            print(f"  $ {line}", flush=True)
        said = []
        with subprocess.Popen(
            ["bash", "-c", script],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                sys.stdout.write(f"    {line}")
                sys.stdout.flush()
                said.append(line)
        if process.returncode != 0:
            last = next((line.strip() for line in reversed(said) if line.strip()), "no output")
            raise StepFailed(last)
        return "".join(said)
