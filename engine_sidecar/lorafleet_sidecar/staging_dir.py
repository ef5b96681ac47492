"""`staging/<id>/`: what a transfer needs to go on after a restart, and in other processes.

| file | what |
|---|---|
| `manifest.bin` | the serialised AdapterManifest |
| `profile.json` | the engine's profile that the layout was planned for |
| `staging.json` | layout key and extent |
| `received` | `received.ReceivedMap` |
| `gate` | `gate.Gate` |
| `refused` | one line, once a chunk proved that the adapter is bad |
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from lorafleet.errors import TransferInterrupted
from lorafleet.profile import EngineProfile
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_sidecar.allocator import Extent
from lorafleet_sidecar.gate import Gate
from lorafleet_sidecar.paths import STAGING, is_staging_id
from lorafleet_sidecar.received import ReceivedMap
from lorafleet_sidecar.staging_plan import StagingPlan

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet_sidecar.index import StagingEntry

_FILES = ("manifest.bin", "profile.json", "staging.json", "received", "gate")


@dataclass(frozen=True)
class StagingDirectory:
    """One staging's files. Every staging id from outside goes through `find`."""

    path: Path
    extent: Extent
    layout_key: str

    @classmethod
    def create(
        cls,
        volume: Path,
        staging_id: str,
        extent: Extent,
        plan: StagingPlan,
        profile: EngineProfile,
    ) -> Self:
        """Write the files of a new staging; the directory appears whole."""
        path = volume / STAGING / staging_id
        partial = path.with_name(f".{staging_id}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700, parents=True)
        (partial / "manifest.bin").write_bytes(plan.manifest.SerializeToString())
        (partial / "profile.json").write_text(profile.to_json())
        facts = {"layout_key": plan.layout_key, "offset": extent.offset, "size": extent.size}
        (partial / "staging.json").write_text(json.dumps(facts))
        ReceivedMap.create(partial / "received", len(plan.chunks))
        (partial / "gate").write_bytes(bytes(8))
        partial.rename(path)
        return cls(path, extent, plan.layout_key)

    @classmethod
    def find(cls, volume: Path, staging_id: str) -> Self:
        """Return the staging that a client names. Raises TransferInterrupted if there is none."""
        if not is_staging_id(staging_id):
            raise TransferInterrupted("the staging id is not 32 hex digits")
        path = volume / STAGING / staging_id
        try:
            facts = json.loads((path / "staging.json").read_bytes())
            extent = Extent(facts["offset"], facts["size"])
            return cls(path, extent, facts["layout_key"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TransferInterrupted(f"there is no staging {staging_id}") from error

    @classmethod
    def is_whole(cls, volume: Path, entry: StagingEntry) -> bool:
        """Whether all files of an index entry are there and name its extent."""
        try:
            found = cls.find(volume, entry.staging_id)
        except TransferInterrupted:
            return False
        here = all((found.path / name).is_file() for name in _FILES)
        return here and found.extent == entry.extent and found.received_path.stat().st_size > 0

    @property
    def received_path(self) -> Path:
        """The file of the received map."""
        return self.path / "received"

    def manifest(self) -> pb.AdapterManifest:
        """Return the manifest that the transfer began with."""
        return pb.AdapterManifest.FromString((self.path / "manifest.bin").read_bytes())

    def plan(self) -> StagingPlan:
        """Make the transfer's plan again, as the process that accepted it did."""
        profile = EngineProfile.from_json((self.path / "profile.json").read_text())
        return StagingPlan.make((self.path / "manifest.bin").read_bytes(), profile, 1 << 62)

    def gate(self) -> Gate:
        """Open the gate's file."""
        return Gate(self.path / "gate")

    def received(self) -> ReceivedMap:
        """Open the received map."""
        return ReceivedMap(self.received_path)

    def refuse(self, line: str) -> None:
        """Note that the adapter itself is bad, for whoever ends the staging."""
        (self.path / "refused").write_text(line)

    def is_refused(self) -> bool:
        """Whether a chunk proved that the adapter is bad."""
        return (self.path / "refused").exists()
