"""What `revision.json` says about one staged revision."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec  # vLLM's own; a load waits for this file: it takes a fifth of json's time
from lorafleet.errors import InvalidAdapter
from lorafleet.profile import ModuleKind  # noqa: TC002 - msgspec reads the annotations

if TYPE_CHECKING:
    from pathlib import Path


class Extent(msgspec.Struct, frozen=True, gc=False):
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


class Revision(NamedTuple):
    """One staged revision; `data_offset` is its first tensor byte in the arena file."""

    digest: str
    dtype: str
    data_offset: int
    rank: int
    modules: tuple[ModuleTensors, ...]


class _Proof(msgspec.Struct, frozen=True, gc=False):
    a: str = ""
    b: str = ""


class _Module(msgspec.Struct, gc=False):
    kind: ModuleKind
    rank: int
    scaling: float | tuple[float, ...]
    a: Extent
    b: Extent
    proof: _Proof = _Proof()


class _File(msgspec.Struct):
    format: int
    digest: str
    dtype: str
    data_offset: int
    rank: int
    modules: dict[str, _Module]


_decoder = msgspec.json.Decoder(_File)


def read_revision(directory: Path) -> Revision:
    """Return the revision that the sidecar described in `directory`.

    Raises InvalidAdapter when the file is missing or is not of format 1.
    """
    file = directory / "revision.json"
    try:
        found = _decoder.decode(file.read_bytes())
    except FileNotFoundError:
        raise InvalidAdapter(f"{file} does not exist: the revision is not staged here") from None
    except msgspec.MsgspecError as error:
        raise InvalidAdapter(f"{file} is not what the sidecar writes: {error}") from None
    if found.format != 1:
        raise InvalidAdapter(f"{file} has format {found.format}, this plugin reads 1")
    modules = [
        ModuleTensors(
            name,
            each.kind,
            each.rank,
            each.scaling if isinstance(each.scaling, tuple) else (each.scaling,),
            each.a,
            each.b,
            (each.proof.a, each.proof.b),
        )
        for name, each in found.modules.items()
    ]
    return Revision(found.digest, found.dtype, found.data_offset, found.rank, tuple(modules))
