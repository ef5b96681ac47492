"""What `revision.json` says about one staged revision."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lorafleet.errors import InvalidAdapter
from lorafleet.profile import ModuleKind

if TYPE_CHECKING:
    from pathlib import Path


class Extent(NamedTuple):
    """One packed tensor: `offset` in bytes from the revision's data, `shape` in elements."""

    offset: int
    shape: tuple[int, ...]


class ModuleTensors(NamedTuple):
    """The pair of one module; `scaling` holds one number, or one for each expert.

    `proof` holds the fingerprints of A and of the scaled B, empty where the sidecar wrote none.
    """

    name: str
    kind: ModuleKind
    rank: int
    scaling: tuple[float, ...]
    a: Extent
    b: Extent
    proof: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Revision:
    """One staged revision; `data_offset` is its first tensor byte in the arena file."""

    digest: str
    dtype: str
    data_offset: int
    rank: int
    modules: tuple[ModuleTensors, ...]


def read_revision(directory: Path) -> Revision:
    """Return the revision that the sidecar described in `directory`.

    Raises InvalidAdapter when the file is missing or is not of format 1.
    """
    file = directory / "revision.json"
    try:
        raw = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise InvalidAdapter(f"{file} does not exist: the revision is not staged here") from None
    except ValueError as error:
        raise InvalidAdapter(f"{file} is not JSON: {error}") from None
    if raw.get("format") != 1:
        raise InvalidAdapter(f"{file} has format {raw.get('format')!r}, this plugin reads 1")
    return Revision(
        digest=raw["digest"],
        dtype=raw["dtype"],
        data_offset=int(raw["data_offset"]),
        rank=int(raw["rank"]),
        modules=tuple(_module(name, entry) for name, entry in raw["modules"].items()),
    )


def _module(name: str, entry: dict[str, Any]) -> ModuleTensors:
    scaling = entry["scaling"]
    return ModuleTensors(
        name=name,
        kind=ModuleKind(entry["kind"]),
        rank=int(entry["rank"]),
        scaling=tuple(map(float, scaling)) if isinstance(scaling, list) else (float(scaling),),
        a=_extent(entry["a"]),
        b=_extent(entry["b"]),
        proof=(entry["proof"]["a"], entry["proof"]["b"]) if "proof" in entry else ("", ""),
    )


def _extent(entry: dict[str, Any]) -> Extent:
    return Extent(int(entry["offset"]), tuple(map(int, entry["shape"])))
