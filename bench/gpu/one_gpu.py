"""The engine of load.py with what is staged for it, and the adapters' numbers in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import inprocess
import torch

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

    def arena_data(self) -> Any:
        """Return the adapter's bytes where the plugin has them mapped and registered."""
        staged = self.staging.staged["big"]
        arena = self.probe.residency.arena.current()
        return arena.view(staged.data_offset, (staged.data_bytes,), torch.uint8)
