"""The engine of load.py with what is staged for it, and the adapters' numbers in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import inprocess
import torch
from lorafleet_vllm.direct import pair_of
from lorafleet_vllm.revision import read_revision

if TYPE_CHECKING:
    from pathlib import Path

    from record import Record
    from shapes import Shape
    from staging import Staging

TENANT, BIG, OTHER, DEVICE, STOCK = 1, 2, 3, 4, 5  # lora_int_ids; OTHER is BIG's bytes again


@dataclass
class Bench:
    """One engine, what is staged for it, and where the figures go."""

    probe: Any
    staging: Staging
    shape: Shape
    record: Record
    folder: Path

    def ours(self, lora_int_id: int, loader: str = "direct") -> Any:
        name = "tenant" if lora_int_id == TENANT else "big"
        return inprocess.revision(self.staging, lora_int_id, name, loader)

    @property
    def engine(self) -> Any:
        return self.probe.llm.llm_engine

    def arena_data(self, name: str = "big") -> torch.Tensor:
        """Return an adapter's bytes where the plugin has them mapped and registered."""
        staged = self.staging.staged[name]
        arena = self.probe.residency.arena.current()
        found: torch.Tensor = arena.view(staged.data_offset, (staged.data_bytes,), torch.uint8)
        return found

    def arena_tensors(self, name: str) -> list[torch.Tensor]:
        """Return the same as the packed tensors it consists of."""
        staged = self.staging.staged[name]
        hex_digest = staged.digest.removeprefix("sha256:")
        volume, arena = self.probe.residency.volume, self.probe.residency.arena.current()
        revision = read_revision(volume.revision_directory(hex_digest))
        pairs = (pair_of(each, revision, arena) for each in revision.modules)
        return [side for pair in pairs for side in (pair.a, pair.b)]
