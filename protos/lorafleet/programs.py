"""Where the programs start: what an install without their extra lacks is told in one line."""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn


def lorafleet() -> NoReturn:
    """`lorafleet`."""
    _start("lorafleet", "lorafleet_operator.inspection.cli", "operator")


def operator() -> NoReturn:
    """`lorafleet-operator`."""
    _start("lorafleet-operator", "lorafleet_operator.cli", "operator")


def sidecar() -> NoReturn:
    """`lorafleet-sidecar`."""
    _start("lorafleet-sidecar", "lorafleet_sidecar.cli", "sidecar")


def _start(program: str, module: str, extra: str) -> NoReturn:
    try:
        sys.exit(importlib.import_module(module).main())
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("lorafleet"):
            raise
        sys.exit(f"{program}: {error.name} is missing: pip install 'lorafleet[{extra}]'")
