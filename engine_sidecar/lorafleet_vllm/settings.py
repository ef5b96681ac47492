"""Where the shared volume lies, and which adapter paths are ours."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

VOLUME_VARIABLE = "LORAFLEET_VOLUME"
OFFLOAD_BUDGET_VARIABLE = "LORAFLEET_OFFLOAD_BUDGET_BYTES"
LOADERS = ("direct", "device")

_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class RevisionPath:
    """One revision on the volume, as a LoRARequest's path names it."""

    hex: str  # 64 hex digits of its digest
    loader: str  # one of LOADERS


@dataclass(frozen=True)
class Volume:
    """The memory-backed volume that this engine shares with its sidecar."""

    root: Path

    @property
    def arena(self) -> Path:
        """The file that holds all staged tensors."""
        return self.root / "arena"

    @property
    def socket(self) -> Path:
        """The control socket that the API server process listens on."""
        return self.root / "run" / "engine.sock"

    def revision_directory(self, hex_digest: str) -> Path:
        """Return the directory with the metadata of one staged revision."""
        return self.root / "revisions" / hex_digest

    def lora_path(self, revision: RevisionPath) -> str:
        """Return the path that a LoRARequest of `revision` carries."""
        return str(self.revision_directory(revision.hex) / revision.loader)

    def revision_of(self, lora_path: str) -> RevisionPath | None:
        """Return which revision `lora_path` names, or None if the adapter is not ours."""
        path = Path(lora_path)
        if path.parent.parent != self.root / "revisions":
            return None
        if not _HEX.fullmatch(path.parent.name) or path.name not in LOADERS:
            return None
        return RevisionPath(path.parent.name, path.name)


def volume_from_environment() -> Volume | None:
    """Return the volume named by LORAFLEET_VOLUME, or None where the plugin is not wanted."""
    root = os.environ.get(VOLUME_VARIABLE, "")
    return Volume(Path(root)) if root else None


def offload_budget(default: int) -> int:
    """Return how many bytes the `device` loader may keep on the host (default: the arena's size)."""
    text = os.environ.get(OFFLOAD_BUDGET_VARIABLE, "")
    return int(text) if text else default
